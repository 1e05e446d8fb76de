"""Masks as scaled_dot_product_attention takes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

BOOLEAN = torch.empty(0, dtype=torch.bool)
"""Stands for boolean masks on the CPU."""

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their bytes."""

NEVER = {
    dtype: torch.tensor(-torch.inf, dtype=dtype).view(INTEGERS[dtype.itemsize]).item()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""The bits of -inf."""


EITHER = {
    dtype: np.array([never, 0], f"int{8 * dtype.itemsize}")
    for dtype, never in NEVER.items()
}
"""The bits of -inf, and of 0."""


def make_small(seen: npt.NDArray[np.bool_], dtype: torch.dtype) -> torch.Tensor:
    """On the CPU: 0 where a column is seen, -inf elsewhere. Of a few numbers, numpy makes
    that in a third of the time."""
    return torch.from_numpy(EITHER[dtype].take(seen)).view(dtype)


def make_band(
    length: int, rows: int, before: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """[rows, before + length]: row i, at column before + i, sees itself and what is to
    its left, `window` columns in all if there is a window.

    rows: at least `length`; rows beyond it see nothing. like: has the dtype and device of
    the result: bool (True where seen) or a floating type (0 where seen, -inf elsewhere).

    Each row is the row above it moved one to the right. So all are stretches of one line,
    and copies of these cost no more than writing them.
    """
    width = before + length
    never, always = (False, True) if like.dtype == torch.bool else (-torch.inf, 0)
    if not length:
        return like.new_full((rows, width), never)
    seen = width if window is None else min(window, width)
    line = like.new_full((width + length - 1,), never)  # the last row, and what is behind
    line.narrow(0, width - seen, seen).fill_(always)
    stretches = line.unfold(0, width, 1)
    order = torch.arange(length - 1, -1, -1, device=like.device)
    if rows == length:
        return stretches.index_select(0, order)
    band = like.new_full((rows, width), never)
    torch.index_select(stretches, 0, order, out=band[:length])
    return band


def make_additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where a column is seen, -inf elsewhere; for bool it is `seen` itself.

    By its bits: seen - 1 has none where a column is seen, and all elsewhere. On the CPU
    `torch.where` takes four times as long.
    """
    if dtype == torch.bool:
        return seen
    bits = (seen.view(torch.int8) - 1).to(INTEGERS[dtype.itemsize])
    return bits.bitwise_and_(NEVER[dtype]).view(dtype)
