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
    """Returns -inf and 0 as numpy has them: bfloat16 as its bits."""
    if dtype == mx.bfloat16:
        return np.array([0xFF80, 0], np.uint16)
    return np.array([-np.inf, 0], np.float16 if dtype == mx.float16 else np.float32)


def convert(numbers: npt.NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """Returns a copy of numbers that consist of those of `get_numbers`."""
    copied = mx.array(numbers)
    return copied if copied.dtype == dtype else copied.view(dtype)


def allocate(count: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns memory for so many numbers, from which MLX copies fast.

    Large memory of numpy and of MLX begins just behind a page. On AMD processors a copy
    between addresses with nearly the same rest modulo the size of a page takes ten times
    as long, so this begins in the middle of a page.
    """
    memory = np.empty(count * like.itemsize + PAGE, np.uint8)
    begin = (PAGE // 2 - memory.ctypes.data) % PAGE
    return memory[begin : begin + count * like.itemsize].view(like.dtype)


def paste(mask: mx.array, patch: Patch, part: mx.array) -> None:
    """Writes `part` [rows, columns] to the rows and columns of the patch."""
    if isinstance(patch.rows, slice) and isinstance(patch.columns, slice):
        mask[patch.rows, patch.columns] = part
        return
    axes = zip(mask.shape, (patch.rows, patch.columns), strict=True)
    rows, columns = (np.arange(size)[numbers] for size, numbers in axes)
    mask[mx.array(rows)[:, None], mx.array(columns)] = part


def make_band(
    length: int, rows: int, before: int, window: int | None, dtype: mx.Dtype
) -> mx.array:
    """Returns the mask of consecutive tokens.

    Row i, at column before + i, sees itself and the columns on its left, with a window
    `window` columns in all. Each row is the one above it shifted by one column, so all
    rows are slices of one line, and only that is computed. On the CPU the result is a
    view of the line, with `rows` + `width` numbers of memory, and attention is as fast
    with it. On other devices, or with rows of padding, the slices are copied: kernels may
    require contiguous rows.

    Args:
        length: number of new tokens.
        rows: number of rows; those beyond `length` see nothing.
        before: number of old tokens.
        window: None for no window.
        dtype: bool_ for True where a row sees a column, a floating type for 0 there and
            -inf elsewhere.

    Returns:
        [rows, before + length].
    """
    width = before + length
    seen = width if window is None else min(window, width)
    line = make_line(width + length - 1, width - seen, width, dtype)
    if rows == length and mx.default_device() == CPU:
        return mx.as_strided(line, (length, width), (-1, 1), length - 1)
    # Rows of padding are slices behind the line.
    never = mx.full((width,), False if dtype == mx.bool_ else -mx.inf, dtype)
    padded = mx.concatenate([line, never])
    stretches = mx.as_strided(padded, (length + width, width), (1, 1))
    begins = [*range(length - 1, -1, -1), *[length + width - 1] * (rows - length)]
    return mx.take(stretches, mx.array(begins), axis=0)


def make_line(size: int, begin: int, end: int, dtype: mx.Dtype) -> mx.array:
    """Returns [size], seen in [begin, end).

    numpy makes it: evaluating a few MLX operations takes longer for so few numbers.
    """
    if dtype == mx.bool_:
        line = np.zeros(size, np.bool_)
        line[begin:end] = True
        return mx.array(line)
    numbers = np.full(size, -np.inf, np.float32)
    numbers[begin:end] = 0
    return mx.array(numbers, dtype)
