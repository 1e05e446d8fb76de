"""The forms on MLX on a GPU: `impl.faults.forms_mlx_gpu:chunked` and so on."""

from __future__ import annotations

import mlx.core as mx

from harness.backend import Backend
from impl.faults.chunks import CHUNKED
from impl.faults.forms_mlx import declare
from impl.faults.quantized import QUANTIZED
from impl.mlx.backend import gpu


def chunked() -> Backend:
    return declare(gpu(), mx.Device(mx.gpu), CHUNKED)


def quantized() -> Backend:
    return declare(gpu(), mx.Device(mx.gpu), QUANTIZED)
