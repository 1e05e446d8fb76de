"""The forms on torch without a mistake: `impl.faults.forms_torch:chunked` and so on."""

from __future__ import annotations

from lockstep.harness.backends import Backend
from lockstep.impl.faults.chunks import CHUNKED
from lockstep.impl.faults.fault import Form, declare_form
from lockstep.impl.faults.quantized import QUANTIZED
from lockstep.impl.torch.backend import cpu
from lockstep.impl.torch.masks import make_band


def declare(backend: Backend, form: Form) -> Backend:
    return declare_form(
        form, backend, lambda config: form.build(backend.open(config), make_band)
    )


def chunked() -> Backend:
    return declare(cpu(), CHUNKED)


def quantized() -> Backend:
    return declare(cpu(), QUANTIZED)
