"""The contenders on MLX: our caches, the caches of mlx-lm, and bare arrays.

Results are evaluated once per step, like in the loop of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from ci.bench.speed import mlx_lm
from ci.bench.speed.measure import Contender
from ci.bench.speed.pools import open_filled
from ci.bench.speed.subjects import Batch, Pair, Subject
from ci.bench.speed.workloads import DIM, Contenders
from ci.bench.speed.works import Prompts, Works
from lockstep.impl.mlx.arrays import DTYPES
from lockstep.impl.mlx.batched import BatchedCache
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.memory import make_band
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.shared.causal import Sizes


def copy_arrays(arrays: Sequence[mx.array]) -> list[mx.array]:
    """Copies arrays as fast as possible, because MLX has no plain copy of a contiguous
    array."""
    wide = (array.view(mx.uint64) for array in arrays)
    return [mx.concatenate([array, array[:, :, :0]], axis=2) for array in wide]


class MLXWorks(Works):
    """The workloads on MLX.

    Args:
        heads: the number of heads of K and V.
    """

    kv, rotating, batched = KVCache, RotatingCache, BatchedCache

    def __init__(self, device: str, dtype: str, heads: int) -> None:
        mx.set_default_device(mx.Device(mx.cpu if device == "cpu" else mx.gpu))
        self.dtype, self.heads = DTYPES[dtype], heads

    def open_peers(self, window: int | None = None, room: int = 0) -> list[Subject]:
        return [mlx_lm.Released(window)]

    def open_batch_peers(
        self, old: Pair, lengths: list[int], window: int | None
    ) -> list[Batch]:
        return [mlx_lm.ReleasedBatch(old, lengths, window)]

    def begin_peers(self, prompts: Prompts, pair: Pair, token: Pair) -> Contenders:
        return [mlx_lm.begin(prompts, pair, token)]

    def finish(self, arrays: Any) -> object:
        mx.eval(arrays)
        return arrays

    def finish_cache(self, cache: Any) -> object:
        return self.finish(cache.view())

    def wait(self) -> None:
        mx.synchronize()

    def repeat(self, array: mx.array, rows: int) -> mx.array:
        return mx.broadcast_to(array, (rows, *array.shape[1:]))

    def own(self, batch: BatchedCache) -> BatchedCache:
        other = batch.clone()
        other.pool.arrays = tuple(
            array.view(self.dtype) for array in copy_arrays(batch.pool.arrays)
        )
        mx.eval(other.pool.arrays)
        return other

    def make(self, length: int, rows: int = 1) -> Pair:
        keys = mx.random.normal((rows, self.heads, length, DIM), self.dtype)
        pair = keys, keys + 1
        mx.eval(pair)
        return pair

    def open(self, sizes: Sizes) -> CausalCache:
        return CausalCache(sizes, dtype=self.dtype, mask=self.dtype)

    def mask(self, rows: int, width: int, form: str) -> Contenders:
        before = width - rows
        dtype = mx.bool_ if form == "bool" else self.dtype
        seen, unseen = mx.array(0, self.dtype), mx.array(-mx.inf, self.dtype)

        def make_additive() -> mx.array:
            return mx.where(create_causal_mask(rows, before), seen, unseen)

        peer = Contender("mlx-lm, made additive", "peer", self.run(make_additive))
        if form == "bool":
            work = self.run(lambda: create_causal_mask(rows, before))
            peer = Contender("mlx-lm", "peer", work)
        band = partial(make_band, rows, rows, before, None, dtype)
        return [
            Contender("ours", "ours", self.run(band)),
            Contender("written out", "also", self.run(lambda: mx.contiguous(band()))),
            peer,
            Contender(
                "bare write", "limit", self.run(lambda: mx.ones((rows, width), dtype))
            ),
        ]

    def unified_mask(self, rows: int, width: int) -> Contenders:
        cache = self.open(Sizes(1, width, width))
        open_filled(cache, width - rows, rows)
        (_, _, peer, limit) = self.mask(rows, width, "additive")

        def make() -> mx.array:
            return cache.make_mask(cache.get_pass())

        return [
            Contender("ours", "ours", self.run(make)),
            Contender("written out", "also", self.run(lambda: mx.contiguous(make()))),
            peer,
            limit,
        ]

    def limit_writes(self, new: Pair, room: int, most: int) -> Contenders:
        length = new[0].shape[2]
        # MLX copies number by number, so view the arrays as 8-byte numbers.
        wide = [array.view(mx.uint64) for array in new]
        buffers = [
            [array.view(mx.uint64) for array in self.make(2 * length)]
            for _ in range(most if length > 1 else 1)
        ]
        mx.eval(wide, buffers)
        place = cycle(range(len(buffers)))

        def copy_plain() -> None:
            pair = buffers[next(place)]
            for buffer, array in zip(pair, wide, strict=True):
                buffer[:, :, length:] = array
            mx.eval(pair)

        return [Contender("plain copy", "limit", copy_plain, most=most)]

    def limit_decode(self, cells: int, rows: int, width: int) -> Contender:
        new, pool = self.make(rows), list(self.make(cells))
        numbers = mx.random.permutation(width // rows * rows) + (cells - width)
        indexes = numbers.reshape(-1, 1, 1, rows, 1)
        mx.eval(indexes)
        places = cycle([mx.contiguous(index) for index in indexes])

        def write() -> None:
            index = next(places)
            for number, array in enumerate(new):
                pool[number] = mx.put_along_axis(pool[number], index, array, 2)
            mx.eval(*pool, mx.zeros((rows, width), self.dtype))

        return Contender("put_along_axis, mask written", "limit", write)

    def limit_clone(self, pair: Pair) -> Contender:
        return Contender("plain copy", "limit", self.run(lambda: copy_arrays(pair)))

    def limit_free(self, cells: int) -> Contender:
        table = mx.ones(2 * cells, mx.int64)

        def free() -> None:
            table[cells:] = 0
            mx.eval(table)

        return Contender("table written", "limit", free, most=1)

    def limit_copy(self, keys: mx.array) -> Contender:
        work = self.run(lambda: copy_arrays([keys]))
        return Contender("plain copy of K", "limit", work)
