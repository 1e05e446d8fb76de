"""The forms on MLX without a mistake: `impl.faults.forms_mlx:chunked` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from lockstep.harness.backends import Backend
from lockstep.impl.faults.chunks import CHUNKED
from lockstep.impl.faults.fault import Form, declare_form
from lockstep.impl.faults.quantized import QUANTIZED
from lockstep.impl.mlx.backend import OnDevice, cpu, make_cache
from lockstep.impl.mlx.masks import make_band


def declare(backend: Backend, device: mx.Device, form: Form) -> Backend:
    def open_cache(config: Mapping[str, Any]) -> OnDevice:
        return OnDevice(form.build(make_cache(config), make_band), device)

    return declare_form(form, backend, open_cache)


def chunked() -> Backend:
    return declare(cpu(), mx.Device(mx.cpu), CHUNKED)


def quantized() -> Backend:
    return declare(cpu(), mx.Device(mx.cpu), QUANTIZED)
