"""Masks as scaled_dot_product_attention takes them."""

from __future__ import annotations

import torch


def make_band(
    length: int,
    rows: int,
    before: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """[rows, before + length]: row i, at column before + i, sees itself and what is to
    its left, `window` columns in all if there is a window.

    rows: at least `length`; rows beyond it see nothing. dtype: bool (True where seen) or
    a floating type (0 where seen, -inf elsewhere).
    """
    width = before + length
    seen = torch.ones(rows, width, dtype=torch.bool, device=device).tril_(before)
    if window is not None and width > window:
        seen.triu_(before - window + 1)
    if rows > length:
        seen[length:] = False
    if dtype == torch.bool:
        return seen
    never = torch.full((rows, width), -torch.inf, dtype=dtype, device=device)
    return never.masked_fill_(seen, 0)
