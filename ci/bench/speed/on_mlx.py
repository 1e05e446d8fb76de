"""The contenders on MLX: our caches, those of mlx-lm, and bare arrays.

Everything is evaluated where a model's loop would: once a step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_lm
from mlx_lm.models.base import create_causal_mask

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.unified import Decoding, Removing, Sharing, open_filled
from ci.bench.speed.workloads import DIM, SMALL_POOL, SMALLEST, Make
from lockstep.impl.mlx.arrays import DTYPES
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.masks import make_band
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.shared.causal import Sizes

Pair = tuple[mx.array, mx.array]


def run(make: Callable[[], Any]) -> Callable[[], None]:
    """Makes arrays, and waits for them; nobody holds them afterwards."""

    def work() -> None:
        mx.eval(make())

    return work


def copy_arrays(arrays: Sequence[mx.array]) -> list[mx.array]:
    """As fast as MLX copies: there is no plain copy of an array that is contiguous."""
    wide = (array.view(mx.uint64) for array in arrays)
    return [mx.concatenate([array, array[:, :, :0]], axis=2) for array in wide]


class MLXSide:
    """heads: of K and V."""

    def __init__(self, device: str, dtype: str, heads: int) -> None:
        mx.set_default_device(mx.Device(mx.cpu if device == "cpu" else mx.gpu))
        self.dtype, self.heads = DTYPES[dtype], heads

    def wait(self) -> None:
        mx.synchronize()

    def make(self, length: int) -> Pair:
        keys = mx.random.normal((1, self.heads, length, DIM), self.dtype)
        pair = keys, keys + 1
        mx.eval(pair)
        return pair

    def extend(self, context: int, length: int) -> Make:
        new, most = self.make(length), STEPS if length == 1 else 4
        room = context + most * length
        ours, peer = KVCache(), mlx_lm.KVCache()
        mx.eval(ours.update(*self.make(context)))
        mx.eval(peer.update_and_fetch(*self.make(context)))
        mx.eval(ours.update(*self.make(room - context)))  # as far as they will grow
        mx.eval(peer.update_and_fetch(*self.make(room - context)))
        return [
            Contender(
                "ours",
                "ours",
                run(lambda: ours.update(*new)),
                lambda: ours.trim(ours.offset - context),
                most,
            ),
            Contender(
                "mlx-lm KVCache",
                "peer",
                run(lambda: peer.update_and_fetch(*new)),
                lambda: peer.trim(peer.offset - context),
                most,
            ),
            *self.limit_writes(new, most),
        ]

    def slide(self, window: int, wrapped: bool, length: int) -> Make:
        new = self.make(length)
        context = 2 * window if wrapped else window // 4
        most = STEPS if wrapped else min(STEPS, (window - context) // length)
        ours, peer = RotatingCache(window), mlx_lm.RotatingKVCache(window)
        for update in (ours.update, peer.update_and_fetch):
            mx.eval(update(*self.make(context - 1)))
            mx.eval(update(*self.make(1)))

        def back() -> None:
            if not wrapped:
                ours.trim(ours.offset - context)

        def trim() -> None:
            if not wrapped:
                peer.trim(peer.offset - context)

        return [
            Contender("ours", "ours", run(lambda: ours.update(*new)), back, most),
            Contender(
                "mlx-lm RotatingKVCache",
                "peer",
                run(lambda: peer.update_and_fetch(*new)),
                trim,
                most,
            ),
            *self.limit_writes(new, most),
        ]

    def limit_writes(self, new: Pair, most: int) -> Make:
        """K and V go to memory that is there: as far apart as that of a cache, or what is
        written last would still be at hand."""
        length = new[0].shape[2]
        # As numbers of 8 bytes: it copies number by number.
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

    def mask(self, rows: int, width: int, form: str) -> Make:
        before = width - rows
        dtype = mx.bool_ if form == "bool" else self.dtype
        seen, unseen = mx.array(0, self.dtype), mx.array(-mx.inf, self.dtype)

        def make_additive() -> mx.array:
            return mx.where(create_causal_mask(rows, before), seen, unseen)

        peer = Contender("mlx-lm, made additive", "peer", run(make_additive))
        if form == "bool":
            work = run(lambda: create_causal_mask(rows, before))
            peer = Contender("mlx-lm", "peer", work)
        band = partial(make_band, rows, rows, before, None, dtype)
        return [
            Contender("ours", "ours", run(band)),
            Contender("written out", "also", run(lambda: mx.contiguous(band()))),
            peer,
            Contender("bare write", "limit", run(lambda: mx.ones((rows, width), dtype))),
        ]

    def unified_mask(self, rows: int, width: int) -> Make:
        cache = self.open(Sizes(1, width, width))
        open_filled(cache, width - rows, rows)
        (_, _, peer, limit) = self.mask(rows, width, "additive")
        work = run(lambda: cache.make_mask(cache.get_pass()))
        return [Contender("ours", "ours", work), peer, limit]

    def open(self, sizes: Sizes) -> CausalCache:
        return CausalCache(sizes, dtype=self.dtype, mask=self.dtype)

    def decode(self, cells: int) -> Make:
        ours, small = (Decoding(size, self.open, self.make) for size in (cells, SMALLEST))
        most = min(ours.most, small.most)
        rows, width = ours.get_form()
        new, pool = self.make(rows), list(self.make(cells))
        places = mx.random.permutation(width)[:rows] + (cells - width)
        index = places[None, None, :, None]
        mx.eval(index)

        def write() -> None:
            for number, array in enumerate(new):
                pool[number] = mx.put_along_axis(pool[number], index, array, 2)
            mx.eval(*pool, mx.zeros((rows, width), self.dtype))

        return [
            Contender("ours", "ours", run(ours.step), ours.start, most),
            Contender(SMALL_POOL, "also", run(small.step), small.start, most),
            Contender("put_along_axis, mask written", "limit", write),
        ]

    def share(self, tokens: int) -> Make:
        ours = Sharing(tokens, self.open, self.make)
        mx.eval(ours.work())
        peer, pair, new = mlx_lm.KVCache(), self.make(tokens), self.make(1)
        mx.eval(peer.update_and_fetch(*pair))
        return [
            Contender("ours", "ours", run(ours.work)),
            Contender(
                "mlx-lm KVCache",
                "peer",
                run(lambda: copy.deepcopy(peer).update_and_fetch(*new)),
            ),
            self.limit_clone(pair),
        ]

    def limit_clone(self, pair: Pair) -> Contender:
        """Copies into fresh memory."""
        return Contender("plain copy", "limit", run(lambda: copy_arrays(pair)))

    def remove(self, tokens: int, where: str) -> Make:
        ours = Removing(tokens, where, self.open, self.make)

        def work() -> None:
            ours.work()
            mx.eval(ours.cache.keys)

        contenders = [Contender("ours", "ours", work, ours.start, ours.most)]
        if where == "middle":
            keys = self.make(tokens)[0]
            work = run(lambda: copy_arrays([keys]))
            limit = Contender("plain copy of K", "limit", work)
            return [*contenders, limit]
        peer, pair = mlx_lm.KVCache(), self.make(2 * tokens)
        mx.eval(peer.update_and_fetch(*pair))

        def refill() -> None:
            peer.offset = 2 * tokens

        trim = Contender(
            "mlx-lm KVCache", "peer", lambda: peer.trim(tokens), refill, most=1
        )
        return [*contenders, trim]

    def keep(self, tokens: int, touched: bool) -> Make:
        token, pair = self.make(1), self.make(tokens)
        ours, peer = KVCache(), mlx_lm.KVCache()
        mx.eval(ours.update(*pair), peer.update_and_fetch(*pair))

        def keep_ours() -> None:
            snapshot = ours.snapshot(0)
            assert snapshot is not None
            if touched:
                ours.trim(1)
                mx.eval(ours.update(*token))
            ours.restore(snapshot, tokens)
            ours.close(snapshot)
            mx.eval(ours.view())

        def keep_peer() -> None:
            saved = copy.deepcopy(peer)
            if touched:
                peer.trim(1)
                mx.eval(peer.update_and_fetch(*token))
            peer.state = saved.state
            mx.eval(peer.state)

        return [
            Contender("ours", "ours", keep_ours),
            Contender("mlx-lm KVCache", "peer", keep_peer),
            self.limit_clone(pair),
        ]
