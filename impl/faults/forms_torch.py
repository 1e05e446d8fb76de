"""The forms on torch without a mistake: `impl.faults.forms_torch:chunked` and so on."""

from __future__ import annotations

from harness.backend import Backend
from impl.faults.chunks import CHUNKED
from impl.faults.fault import Form, declare_form
from impl.faults.quantized import QUANTIZED
from impl.torch.backend import cpu
from impl.torch.masks import make_band


def declare(backend: Backend, form: Form) -> Backend:
    return declare_form(
        form, backend, lambda config: form.build(backend.open(config), make_band)
    )


def chunked() -> Backend:
    return declare(cpu(), CHUNKED)


def quantized() -> Backend:
    return declare(cpu(), QUANTIZED)
