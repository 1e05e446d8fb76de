"""The code for CUDA where the tests run: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
INTERPRETER = {} if HAS_GPU else {"TRITON_INTERPRET": "1"}
"""What the environment must have when the kernels are imported."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def import_kernels() -> Any:
    """Skips the tests of the module that asks, where Triton is not installed."""
    reason = "Triton is not installed; there is none for this system"
    pytest.importorskip("triton", reason=reason)
    with patch.dict(os.environ, INTERPRETER):
        from impl.torch.kernels.fused import TritonKernels
    return TritonKernels()


def cuts_off(dtype: torch.dtype) -> bool:
    """Whether numbers are cut off, not rounded, where they become bfloat16."""
    return not HAS_GPU and dtype == torch.bfloat16
