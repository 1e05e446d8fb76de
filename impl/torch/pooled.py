"""Compressed entries on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep.impl.shared.pooled import Combine, PooledCacheBase
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.masks import make_additive
from lockstep.impl.torch.memory import Pair


class PooledCache(PooledCacheBase):
    """Attention over compressed entries of one sequence, batch 1.

    `update`, `view` and `state` return views of the entries, which are valid until the
    next update, trim, restore or free of this cache.

    Args:
        pool: number of tokens of a window.
        overlap: number of tokens before a window that its entry also has.
        lookahead: number of tokens, such as drafts, that a trim can always take back.
        combine: makes entries from tokens; None for their mean.
        options: step, fill and mask, as of `KVCache`.
    """

    def __init__(
        self,
        pool: int,
        overlap: int = 0,
        lookahead: int = 0,
        combine: Combine | None = None,
        **options: Any,
    ) -> None:
        super().__init__((pool, overlap, lookahead), KVCache(**options), combine)
        self.arguments, self.options = (pool, overlap, lookahead, combine), options

    def make_empty(self) -> PooledCache:
        return PooledCache(*self.arguments, **self.options)

    def cut_windows(self, array: torch.Tensor, width: int) -> torch.Tensor:
        return array.unfold(2, width, self.pool).movedim(-1, 3)

    def average(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        means = [array.mean(3, dtype=torch.float32) for array in (keys, values)]
        return means[0].to(keys.dtype), means[1].to(values.dtype)

    def make_stairs(self, counts: Sequence[int], width: int) -> torch.Tensor:
        device = self.mask.device
        ends = torch.tensor(counts, device=device)[:, None]
        seen = torch.arange(width, device=device) < ends
        is_bool = self.mask.dtype == torch.bool
        return seen if is_bool else make_additive(seen, self.mask.dtype)
