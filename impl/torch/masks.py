"""Masks as scaled_dot_product_attention takes them."""

from __future__ import annotations

import torch

BOOLEAN = torch.empty(0, dtype=torch.bool)
"""Stands for boolean masks on the CPU."""


def make_band(
    length: int, rows: int, before: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """[rows, before + length]: row i, at column before + i, sees itself and what is to
    its left, `window` columns in all if there is a window.

    rows: at least `length`; rows beyond it see nothing. like: has the dtype and device of
    the result: bool (True where seen) or a floating type (0 where seen, -inf elsewhere).
    """
    width = before + length
    seen = like.new_ones((rows, width), dtype=torch.bool).tril_(before)
    if window is not None and width > window:
        seen.triu_(before - window + 1)
    if rows > length:
        seen[length:] = False
    if like.dtype == torch.bool:
        return seen
    never = like.new_full((rows, width), -torch.inf)
    return never.masked_fill_(seen, 0)
