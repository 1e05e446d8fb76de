"""Numbers in a type of fewer digits, rounded to the nearest, on a GPU as in Triton's
interpreter: that cuts float32 off where it becomes bfloat16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def convert(numbers: tl.tensor, TYPE: tl.constexpr, CUTS_OFF: tl.constexpr) -> tl.tensor:
    """CUTS_OFF: what `cuts_off` says; nothing of it is compiled for a GPU."""
    if CUTS_OFF and numbers.dtype != TYPE:
        bits = numbers.to(tl.float32).to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        numbers = bits.to(tl.float32, bitcast=True)
    return numbers.to(TYPE)


def cuts_off(dtype: torch.dtype) -> bool:
    """Whether numbers that become `dtype` must be rounded beforehand."""
    is_interpreted = not isinstance(convert, triton.JITFunction)
    return is_interpreted and dtype == torch.bfloat16
