"""Compressed entries on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.pooled import PooledCacheBase
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.masks import make_additive
from lockstep.impl.torch.memory import Pair


class PooledCache(PooledCacheBase):
    """Attention over compressed entries of one sequence, batch 1.

    `update`, `view` and `state` return views of the entries, which are valid until the
    next update, trim, restore or free of this cache.
    """

    cache_of_entries = KVCache

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
