"""The forms on MLX on a GPU: `impl.faults.forms_mlx_gpu:chunked` and so on."""

from __future__ import annotations

import mlx.core as mx

from lockstep.harness.backends import Backend
from lockstep.impl.faults.chunks import CHUNKED
from lockstep.impl.faults.forms_mlx import declare
from lockstep.impl.faults.quantized import QUANTIZED
from lockstep.impl.mlx.backend import gpu


def chunked() -> Backend:
    return declare(gpu(), mx.Device(mx.gpu), CHUNKED)


def quantized() -> Backend:
    return declare(gpu(), mx.Device(mx.gpu), QUANTIZED)
