"""Compressed entries on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.pooled import Combine, PooledCacheBase, plan_tokens
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.masks import BOOLEAN, make_additive
from lockstep.impl.torch.memory import Pair, TokenMemory


class PooledCache(PooledCacheBase):
    """Attention over compressed entries of one sequence, batch 1.

    `update`, `view` and `state` return views of the entries, which are valid until the
    next update, trim, restore or free of this cache.

    Args:
        pool: number of tokens of a window.
        overlap: number of tokens before a window that its entry also has.
        lookahead: number of tokens, such as drafts, that a trim can always take back.
        step, fill, mask: see `impl.torch.kv`.
        combine: makes entries from tokens; None for their mean.
    """

    def __init__(
        self,
        pool: int,
        overlap: int = 0,
        lookahead: int = 0,
        step: int = 256,
        fill: float | None = None,
        mask: torch.Tensor = BOOLEAN,
        combine: Combine | None = None,
    ) -> None:
        sizes = pool, overlap, lookahead
        memory = TokenMemory(plan_tokens(*sizes), fill)
        super().__init__(memory, KVCache(step, fill, mask), sizes, mask, combine)
        self.options = *sizes, step, fill, mask, combine

    def make_empty(self) -> PooledCache:
        return PooledCache(*self.options)

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
