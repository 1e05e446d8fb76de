"""Masks as mx.fast.scaled_dot_product_attention takes them."""

from __future__ import annotations

import mlx.core as mx


def make_band(
    length: int, rows: int, before: int, window: int | None, dtype: mx.Dtype
) -> mx.array:
    """[rows, before + length]: row i, at column before + i, sees itself and what is to
    its left, `window` columns in all if there is a window.

    rows: at least `length`; rows beyond it see nothing. dtype: bool_ (True where seen) or
    a floating type (0 where seen, -inf elsewhere).

    Each row is the row above it moved one to the right. So all are stretches of one line,
    and only that is computed: what is returned is a view of it, with `rows` + `width`
    numbers of memory. Attention takes no longer with it.
    """
    width = before + length
    behind = mx.arange(width - 1, -length, -1)  # query - column
    line = behind >= 0
    if window is not None and width > window:
        line = line & (behind < window)
    if dtype != mx.bool_:
        line = mx.where(line, mx.array(0, dtype), mx.array(-mx.inf, dtype))
    band = mx.as_strided(line, (length, width), (-1, 1), length - 1)
    if rows == length:
        return band
    never = False if dtype == mx.bool_ else -mx.inf
    return mx.concatenate([band, mx.full((rows - length, width), never, dtype)])
