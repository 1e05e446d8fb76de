"""The forms on torch on CUDA: `impl.faults.forms_torch_cuda:chunked` and so on."""

from __future__ import annotations

from harness.backend import Backend
from impl.faults.chunks import CHUNKED
from impl.faults.forms_torch import declare
from impl.faults.quantized import QUANTIZED
from impl.torch.backend import cuda


def chunked() -> Backend:
    return declare(cuda(), CHUNKED)


def quantized() -> Backend:
    return declare(cuda(), QUANTIZED)
