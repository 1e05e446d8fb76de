"""Masks for mx.fast.scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.mask_line import Patch

CPU = mx.Device(mx.cpu)
PAGE = 4096


def get_numbers(dtype: mx.Dtype) -> npt.NDArray[Any]:
    """Returns -inf and 0 as numpy numbers; for bfloat16, as integers with the
    same bits."""
    if dtype == mx.bfloat16:
        return np.array([0xFF80, 0], np.uint16)
    return np.array([-np.inf, 0], np.float16 if dtype == mx.float16 else np.float32)


def convert(numbers: npt.NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """Copies an array of numbers from `get_numbers` to an MLX array."""
    copied = mx.array(numbers)
    return copied if copied.dtype == dtype else copied.view(dtype)


def allocate(count: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns memory for `count` numbers that MLX can copy fast.

    Large arrays of numpy and of MLX begin just after the start of a page. On AMD
    processors, a copy takes ten times as long if both addresses have nearly the same
    offset in a page. This memory therefore begins in the middle of a page.
    """
    memory = np.empty(count * like.itemsize + PAGE, np.uint8)
    begin = (PAGE // 2 - memory.ctypes.data) % PAGE
    return memory[begin : begin + count * like.itemsize].view(like.dtype)


def paste(mask: mx.array, patch: Patch, content: mx.array) -> None:
    """Writes `content` [rows, columns] to the rows and columns of the patch."""
    if isinstance(patch.rows, slice) and isinstance(patch.columns, slice):
        mask[patch.rows, patch.columns] = content
        return
    axes = zip(mask.shape, (patch.rows, patch.columns), strict=True)
    rows, columns = (np.arange(size)[numbers] for size, numbers in axes)
    mask[mx.array(rows)[:, None], mx.array(columns)] = content
