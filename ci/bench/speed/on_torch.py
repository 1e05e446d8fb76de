"""The contenders on torch: our caches, those of transformers if it is installed, and bare
tensors."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import cycle

import torch

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.unified import Decoding, Removing, Sharing, open_filled
from ci.bench.speed.workloads import DIM, SMALL_POOL, SMALLEST, Make
from lockstep.impl.shared.causal import Sizes
from lockstep.impl.torch.arrays import DTYPES
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.masks import make_band
from lockstep.impl.torch.rotating import RotatingCache

if find_spec("transformers"):
    from ci.bench.speed import transformers_peers as peers
else:
    peers = None

Pair = tuple[torch.Tensor, torch.Tensor]


def prepare() -> None:
    """For the whole process: what whoever generates tokens does."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)


class TorchSide:
    """heads: of K and V."""

    def __init__(self, device: str, dtype: str, heads: int) -> None:
        self.device, self.dtype, self.heads = device, DTYPES[dtype], heads

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def make(self, length: int) -> Pair:
        shape = (1, self.heads, length, DIM)
        keys = torch.randn(shape, dtype=torch.float32).to(self.device, self.dtype)
        return keys, keys + 1

    def empty(self, length: int) -> torch.Tensor:
        shape = (1, self.heads, length, DIM)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def extend(self, context: int, length: int) -> Make:
        old, new, most = self.make(context), self.make(length), STEPS
        if length > 1:
            most = 4
        room = context + most * length
        ours = KVCache()
        ours.update(*old)
        ours.update(*self.make(room - context))  # it has grown as far as it will
        return [
            Contender(
                "ours",
                "ours",
                lambda: ours.update(*new),
                lambda: ours.trim(ours.offset - context),
                most,
            ),
            *(peers.extend(old, new, most) if peers else ()),
            *self.limit_writes(new, room, most),
        ]

    def slide(self, window: int, wrapped: bool, length: int) -> Make:
        context = 2 * window if wrapped else window // 4
        old, new = self.make(context), self.make(length)
        most = STEPS if wrapped else min(STEPS, (window - context) // length)
        ours = RotatingCache(window)
        ours.update(*old)
        if not wrapped:
            ours.update(*self.make(window - context))

        def back() -> None:
            if not wrapped:
                ours.trim(ours.offset - context)

        return [
            Contender("ours", "ours", lambda: ours.update(*new), back, most),
            *(peers.slide(old, new, window, most) if peers else ()),
            *self.limit_writes(new, 2 * window, min(most, 2 * window // length)),
        ]

    def limit_writes(self, new: Pair, room: int, most: int) -> Make:
        """K and V go to memory that is there: as far apart as that of a cache, or what is
        written last would still be at hand."""
        length = new[0].shape[2]
        keys, values = self.empty(room), self.empty(room)
        index = torch.arange(room - length, room, device=self.device)
        place = cycle([tuple(map(torch.empty_like, new)) for _ in range(most)])

        def copy_plain() -> None:
            to_keys, to_values = next(place)
            to_keys.copy_(new[0])
            to_values.copy_(new[1])

        def copy_index() -> None:
            keys.index_copy_(2, index, new[0])
            values.index_copy_(2, index, new[1])

        return [
            Contender("plain copy", "limit", copy_plain, most=most),
            Contender("index_copy_", "limit", copy_index, most=most),
        ]

    def mask(self, rows: int, width: int, form: str) -> Make:
        dtype = torch.bool if form == "bool" else self.dtype
        like = torch.empty(0, dtype=dtype, device=self.device)
        before = width - rows
        model = torch.empty(0, dtype=self.dtype, device=self.device)
        return [
            Contender("ours", "ours", lambda: make_band(rows, rows, before, None, like)),
            *(peers.mask(rows, width, form, model) if peers else ()),
            Contender(
                "bare write", "limit", lambda: like.new_empty((rows, width)).fill_(1)
            ),
        ]

    def unified_mask(self, rows: int, width: int) -> Make:
        cache = self.open(Sizes(1, width, width))
        open_filled(cache, width - rows, rows)
        kept = torch.empty((rows, width), dtype=self.dtype, device=self.device)
        return [
            Contender("ours", "ours", lambda: cache.make_mask(cache.get_pass())),
            *self.mask(rows, width, "additive")[1:-1],
            Contender("bare write", "limit", lambda: kept.fill_(1)),
        ]

    def open(self, sizes: Sizes) -> CausalCache:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return CausalCache(sizes, like=like, mask=like)

    def decode(self, cells: int) -> Make:
        ours, small = (Decoding(size, self.open, self.make) for size in (cells, SMALLEST))
        most = min(ours.most, small.most)
        rows, width = ours.get_form()
        new = self.make(rows)
        keys, values = self.empty(cells), self.empty(cells)
        index = torch.randperm(width, device=self.device)[:rows] + cells - width
        mask = keys.new_empty((rows, width))

        def write() -> None:
            keys.index_copy_(2, index, new[0])
            values.index_copy_(2, index, new[1])
            mask.fill_(0)

        return [
            Contender("ours", "ours", ours.step, ours.start, most),
            Contender(SMALL_POOL, "also", small.step, small.start, most),
            Contender("index_copy_, mask written", "limit", write),
        ]

    def share(self, tokens: int) -> Make:
        ours = Sharing(tokens, self.open, self.make)
        old, new = self.make(tokens), self.make(1)
        return [
            Contender("ours", "ours", ours.work),
            *(peers.share(old, new) if peers else ()),
            self.limit_clone(old),
        ]

    def limit_clone(self, pair: Pair) -> Contender:
        """Copies into fresh memory."""
        work = lambda: (pair[0].clone(), pair[1].clone())  # noqa: E731
        return Contender("plain copy", "limit", work)

    def remove(self, tokens: int, where: str) -> Make:
        ours = Removing(tokens, where, self.open, self.make)
        contenders = [Contender("ours", "ours", ours.work, ours.start, ours.most)]
        if where == "tail":
            old = self.make(2 * tokens)
            return [*contenders, *(peers.remove(old, tokens) if peers else ())]
        keys = self.make(tokens)[0]
        other = torch.empty_like(keys)
        limit = Contender("plain copy of K", "limit", lambda: other.copy_(keys))
        return [*contenders, limit]

    def keep(self, tokens: int, touched: bool) -> Make:
        old, token, ours = self.make(tokens), self.make(1), KVCache()
        ours.update(*old)

        def work() -> None:
            snapshot = ours.snapshot(0)
            assert snapshot is not None
            if touched:
                ours.trim(1)
                ours.update(*token)
            ours.restore(snapshot, tokens)
            ours.close(snapshot)

        return [
            Contender("ours", "ours", work),
            *(peers.keep(old, token, touched) if peers else ()),
            self.limit_clone(old),
        ]
