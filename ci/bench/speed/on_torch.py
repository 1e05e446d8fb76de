"""The contenders on torch: our caches, caches of transformers (if installed), and bare
tensors."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import cycle

import torch

from ci.bench.speed import pages
from ci.bench.speed.measure import Contender
from ci.bench.speed.pools import open_filled
from ci.bench.speed.subjects import Batch, Pair, Subject
from ci.bench.speed.workloads import DIM, Contenders
from ci.bench.speed.works import Works
from lockstep.impl.shared.causal import Sizes
from lockstep.impl.torch.arrays import DTYPES
from lockstep.impl.torch.batched import BatchedCache
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.memory import make_band
from lockstep.impl.torch.rotating import RotatingCache

HAS_PEERS = find_spec("transformers") is not None
if HAS_PEERS:
    from ci.bench.speed import transformers


def prepare() -> None:
    """Configures torch for the process: one thread, and no gradients, like in
    generation."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)


class TorchWorks(Works):
    """The workloads on torch.

    Args:
        heads: the number of heads of K and V.
    """

    kv, rotating, batched = KVCache, RotatingCache, BatchedCache

    def __init__(self, device: str, dtype: str, heads: int) -> None:
        self.device, self.dtype, self.heads = device, DTYPES[dtype], heads

    def open_peers(self, window: int | None = None, room: int = 0) -> list[Subject]:
        if not HAS_PEERS:
            return []
        return [transformers.Static(window, room), transformers.Dynamic(window)]

    def open_batch_peers(
        self, old: Pair, lengths: list[int], window: int | None
    ) -> list[Batch]:
        return transformers.open_batches(old, lengths, window) if HAS_PEERS else []

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def repeat(self, array: torch.Tensor, rows: int) -> torch.Tensor:
        return array.expand(rows, -1, -1, -1)

    def own(self, batch: BatchedCache) -> BatchedCache:
        return batch.clone()

    def make(self, length: int, rows: int = 1) -> Pair:
        shape = (rows, self.heads, length, DIM)
        keys = torch.randn(shape, dtype=torch.float32).to(self.device, self.dtype)
        return keys, keys + 1

    def empty(self, length: int) -> torch.Tensor:
        shape = (1, self.heads, length, DIM)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def open(self, sizes: Sizes) -> CausalCache:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return CausalCache(sizes, like=like, mask=like)

    def mask(self, rows: int, width: int, form: str) -> Contenders:
        dtype = torch.bool if form == "bool" else self.dtype
        like = torch.empty(0, dtype=dtype, device=self.device)
        before = width - rows
        model = torch.empty(0, dtype=self.dtype, device=self.device)
        return [
            Contender("ours", "ours", lambda: make_band(rows, rows, before, None, like)),
            *(transformers.mask(rows, width, form, model) if HAS_PEERS else []),
            Contender(
                "bare write", "limit", lambda: like.new_empty((rows, width)).fill_(1)
            ),
        ]

    def unified_mask(self, rows: int, width: int) -> Contenders:
        cache = self.open(Sizes(1, width, width))
        open_filled(cache, width - rows, rows)
        kept = torch.empty((rows, width), dtype=self.dtype, device=self.device)
        return [
            Contender("ours", "ours", lambda: cache.make_mask(cache.get_pass())),
            *self.mask(rows, width, "additive")[1:-1],
            Contender("bare write", "limit", lambda: kept.fill_(1)),
        ]

    def attend_paged(self, requests: int, tokens: int) -> Contenders:
        return pages.list_contenders(requests, tokens, self.heads, self.empty(0))

    def limit_writes(self, new: Pair, room: int, most: int) -> Contenders:
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

    def limit_decode(self, cells: int, rows: int, width: int) -> Contender:
        new = self.make(rows)
        keys, values = self.empty(cells), self.empty(cells)
        places = torch.randperm(width, device=self.device) + cells - width
        places = cycle(places.unfold(0, rows, rows))
        mask = keys.new_empty((rows, width))

        def write() -> None:
            index = next(places)
            keys.index_copy_(2, index, new[0])
            values.index_copy_(2, index, new[1])
            mask.fill_(0)

        return Contender("index_copy_, mask written", "limit", write)

    def limit_clone(self, pair: Pair) -> Contender:
        work = lambda: (pair[0].clone(), pair[1].clone())  # noqa: E731
        return Contender("plain copy", "limit", work)

    def limit_free(self, cells: int) -> Contender:
        table = torch.ones(2 * cells, dtype=torch.int64, device=self.device)
        return Contender("table written", "limit", lambda: table[cells:].fill_(0), most=1)

    def limit_copy(self, keys: torch.Tensor) -> Contender:
        other = torch.empty_like(keys)
        return Contender("plain copy of K", "limit", lambda: other.copy_(keys))
