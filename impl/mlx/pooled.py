"""Compressed entries on MLX."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.memory import Pair
from lockstep.impl.shared.pooled import PooledCacheBase


class PooledCache(PooledCacheBase):
    """Attention over compressed entries of one sequence, batch 1.

    The arrays that `update`, `view` and `state` return keep their content; see
    `impl.mlx.kv`.
    """

    cache_of_entries = KVCache

    def cut_windows(self, array: mx.array, width: int) -> mx.array:
        count = (array.shape[2] - width) // self.pool + 1
        begins = mx.arange(count)[:, None] * self.pool
        return mx.take(array, begins + mx.arange(width), axis=2)

    def average(self, keys: mx.array, values: mx.array) -> Pair:
        means = [array.astype(mx.float32).mean(3) for array in (keys, values)]
        return means[0].astype(keys.dtype), means[1].astype(values.dtype)

    def make_stairs(self, counts: Sequence[int], width: int) -> mx.array:
        seen = mx.arange(width) < mx.array(counts)[:, None]
        if self.mask == mx.bool_:
            return seen
        return mx.where(seen, mx.array(0, self.mask), mx.array(-mx.inf, self.mask))
