"""Converts numbers to a shorter floating-point type, rounded to nearest.

Triton's interpreter truncates float32 to bfloat16; these functions round there, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def convert(numbers: tl.tensor, TYPE: tl.constexpr, CUTS_OFF: tl.constexpr) -> tl.tensor:
    """Converts numbers to TYPE. CUTS_OFF is the result of `cuts_off`; if it is False, as
    on a GPU, the rounding is not compiled."""
    if CUTS_OFF and numbers.dtype != TYPE:
        bits = numbers.to(tl.float32).to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        numbers = bits.to(tl.float32, bitcast=True)
    return numbers.to(TYPE)


def cuts_off(dtype: torch.dtype) -> bool:
    """Returns whether numbers must be rounded before they are converted to `dtype`."""
    is_interpreted = not isinstance(convert, triton.JITFunction)
    return is_interpreted and dtype == torch.bfloat16
