"""The forms on torch on CUDA: `impl.faults.forms_torch_cuda:chunked` and so on."""

from __future__ import annotations

from lockstep.harness.backends import Backend
from lockstep.impl.faults.chunks import CHUNKED
from lockstep.impl.faults.forms_torch import declare
from lockstep.impl.faults.quantized import QUANTIZED
from lockstep.impl.torch.backend import cuda


def chunked() -> Backend:
    return declare(cuda(), CHUNKED)


def quantized() -> Backend:
    return declare(cuda(), QUANTIZED)
