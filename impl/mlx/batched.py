"""Batches of full and of sliding-window caches on MLX."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.memory import Pair, make_band
from lockstep.impl.mlx.pool import RowPool
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.batched import Bools
from lockstep.impl.shared.batched_tokens import Span, Starts, TokenBatch


class BatchedCache(TokenBatch):
    """Attention over the sequences of several requests, one row for each request.

    The arrays that `update` and `state` return keep their content. Drop these arrays
    before the next update is evaluated; otherwise, that update copies the whole pool.

    Args:
        rows: number of rows, which are empty.
        window: number of tokens that a query sees, including itself; None for all tokens.
        step, fill, mask: see `impl.mlx.kv`.
    """

    singles = KVCache, RotatingCache
    pool: RowPool

    def __init__(
        self,
        rows: int,
        window: int | None = None,
        step: int = 256,
        fill: float = 0.0,
        mask: mx.Dtype = mx.bool_,
    ) -> None:
        super().__init__(rows, window, step, fill, mask)
        self.pool = RowPool(rows, window, step, fill)
        self.line: tuple[Starts, int, mx.array] | None = None

    def get_ends(self) -> Ints:
        """Returns for each row the column after its tokens, [rows]."""
        return np.array(self.lengths) + np.array(self.pool.starts)

    def get_positions(self, length: int) -> mx.array:
        """Returns the positions of the next `length` columns, [rows, length]."""
        return mx.array(self.place(length)).reshape(-1, length)

    def place(self, length: int) -> Ints:
        """Returns the positions of the next `length` columns, [rows, 1, length, 1]."""
        offsets = np.array(self.offsets, np.int32).reshape(-1, 1, 1, 1)
        return offsets + np.arange(length, dtype=np.int32)[:, None]

    def make_causal(self, length: int) -> mx.array | str:
        if self.mask == mx.bool_:
            return "causal"
        return make_band(length, length, self.lengths[0], None, self.mask)

    def make_seen(self, length: int, span: Span, starts: Starts) -> mx.array:
        queries = np.maximum(self.place(length), 0)  # padding on the left sees token 0
        ends = queries + np.array(starts, np.int32).reshape(-1, 1, 1, 1)
        if (ends == ends[:1]).all():
            ends = ends[:1]
            if length == 1 and ends.item() == span[1] - 1:
                return self.get_line(starts, span[1])[..., span[0] : span[1]]
        ages = ends - np.arange(*span, dtype=np.int32)
        if span == (0, self.window):
            ages %= self.window
        ages = ages.view(np.uint32)  # a column behind the query is very old
        queries = queries.view(np.uint32)
        if length == 1:  # numpy takes less time for so few
            return self.finish(mx.array(ages <= queries))
        return self.finish(mx.array(ages) <= mx.array(queries))

    def get_line(self, starts: Starts, width: int) -> mx.array:
        """Returns the mask of a query after all tokens, with at least `width` columns.

        Until rows move, each step uses a slice of this mask.
        """
        if self.line is None or self.line[0] is not starts or self.line[1] < width:
            width = max(width, self.pool.room)
            begins = np.array(starts, np.int32).reshape(-1, 1, 1, 1)
            seen = mx.array(np.arange(width, dtype=np.int32) >= begins)
            self.line = starts, width, self.finish(seen)
        return self.line[2]

    def make_joint(self, length: int, span: Span) -> mx.array:
        window, positions = self.window, self.place(length)
        assert window is not None
        queries = np.maximum(positions, 0)
        last = np.array(self.lengths, np.int32).reshape(-1, 1, 1, 1) - 1
        starts = np.array(self.pool.starts, np.int32).reshape(-1, 1, 1, 1)
        columns = np.arange(*span, dtype=np.int32)
        in_pool = last - (last + starts - columns) % window  # negative: no token
        in_pool = mx.array(np.concatenate((in_pool, positions.swapaxes(2, 3)), axis=3))
        first = np.maximum(queries - window, -1)
        return self.finish((in_pool <= mx.array(queries)) & (in_pool > mx.array(first)))

    def finish(self, seen: mx.array) -> mx.array:
        if self.mask == mx.bool_:
            return seen
        never = mx.array(-mx.inf, self.mask)
        return mx.where(seen, mx.array(0, self.mask), never)

    def blank(self, arrays: Pair, tokens: Bools) -> Pair:
        is_token = mx.array(tokens)[:, None, :, None]
        keys, values = arrays
        return (
            mx.where(is_token, keys, mx.array(0, keys.dtype)),
            mx.where(is_token, values, mx.array(0, values.dtype)),
        )

    def concatenate(self, old: Pair | None, new: Pair) -> Pair:
        """Concatenates two pairs of K and V. The result is evaluated before the pool is
        written."""
        if old is None:
            return new[0][...], new[1][...]
        joint = super().concatenate(old, new)
        keys, values = mx.depends(self.pool.arrays, joint)
        self.pool.arrays = keys, values
        return joint

    def take(self, row: int) -> KVCache | RotatingCache:
        cache = super().take(row)
        mx.eval(cache.memory.list_arrays())  # or the next write copies the pool
        return cache
