"""The code for CUDA where the tests run: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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
    """Skips the tests of the module that asks, where Triton cannot run."""
    oldest = None if HAS_GPU else "3.9"  # the interpreter of older ones fails
    reason = f"needs Triton{f' {oldest} or later, to interpret' if oldest else ''}"
    pytest.importorskip("triton", oldest, reason)
    with patch.dict(os.environ, INTERPRETER):
        from lockstep.impl.torch.kernels.fused import TritonKernels
    return TritonKernels()


ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in the folder of the project."""
    own = (str(ROOT / ".src"), str(ROOT), str(ROOT / "tests" / "impl"))
    paths = os.pathsep.join((*own, os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
