"""Masks as mx.fast.scaled_dot_product_attention takes them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

CPU = mx.Device(mx.cpu)

EITHER = np.array([-np.inf, 0], np.float32)


def make_small(seen: npt.NDArray[np.bool_], dtype: mx.Dtype) -> mx.array:
    """0 where a column is seen, -inf elsewhere. Nothing is left to evaluate, which takes
    longer than to make a few numbers here."""
    return mx.array(EITHER.take(seen), dtype)


def make_band(
    length: int, rows: int, before: int, window: int | None, dtype: mx.Dtype
) -> mx.array:
    """[rows, before + length]: row i, at column before + i, sees itself and what is to
    its left, `window` columns in all if there is a window.

    rows: at least `length`; rows beyond it see nothing. dtype: bool_ (True where seen) or
    a floating type (0 where seen, -inf elsewhere).

    Each row is the row above it moved one to the right. So all are stretches of one line,
    and only that is computed: on the CPU what is returned is a view of it, with `rows` +
    `width` numbers of memory, and attention takes no longer with it. Elsewhere, or with
    rows of padding, stretches are copied: kernels may want rows one behind the other.
    """
    width = before + length
    seen = width if window is None else min(window, width)
    line = make_line(width + length - 1, width - seen, width, dtype)
    if rows == length and mx.default_device() == CPU:
        return mx.as_strided(line, (length, width), (-1, 1), length - 1)
    # Behind the line nothing is seen.
    never = mx.full((width,), False if dtype == mx.bool_ else -mx.inf, dtype)
    padded = mx.concatenate([line, never])
    stretches = mx.as_strided(padded, (length + width, width), (1, 1))
    begins = [*range(length - 1, -1, -1), *[length + width - 1] * (rows - length)]
    return mx.take(stretches, mx.array(begins), axis=0)


def make_line(size: int, begin: int, end: int, dtype: mx.Dtype) -> mx.array:
    """[size], seen in [begin, end). By numpy: to evaluate a few operations of MLX takes
    longer than to make so few numbers."""
    if dtype == mx.bool_:
        line = np.zeros(size, np.bool_)
        line[begin:end] = True
        return mx.array(line)
    numbers = np.full(size, -np.inf, np.float32)
    numbers[begin:end] = 0
    return mx.array(numbers, dtype)
