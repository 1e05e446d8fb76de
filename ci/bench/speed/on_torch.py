"""The contenders on torch: our caches, those of transformers, and bare tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.masking_utils import create_causal_mask

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.unified import Decoding, Removing, open_filled
from ci.bench.speed.workloads import DIM, Make
from impl.shared.causal import Sizes
from impl.torch.arrays import DTYPES
from impl.torch.causal import CausalCache
from impl.torch.kv import KVCache
from impl.torch.masks import make_band
from impl.torch.rotating import RotatingCache

Pair = tuple[torch.Tensor, torch.Tensor]


class TorchSide:
    """heads: of K and V."""

    def __init__(self, device: str, dtype: str, heads: int) -> None:
        self.device, self.dtype, self.heads = device, DTYPES[dtype], heads
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)  # as whoever generates tokens does

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
        new, most = self.make(length), STEPS if length == 1 else 4
        room = context + most * length
        ours = KVCache()
        dynamic, static = DynamicLayer(), StaticLayer(room)
        for cache in (ours, dynamic, static):
            cache.update(*self.make(context))
        ours.update(*self.make(room - context))  # it has grown as far as it will

        return [
            Contender(
                "ours",
                "ours",
                lambda: ours.update(*new),
                lambda: ours.trim(ours.offset - context),
                most,
            ),
            Contender(
                "transformers static",
                "peer",
                lambda: static.update(*new),
                lambda: static.cumulative_length.fill_(context),
                most,
            ),
            Contender(
                "transformers dynamic",
                "peer",
                lambda: dynamic.update(*new),
                lambda: dynamic.crop(context - dynamic.get_seq_length()),
                most=min(most, 4),
            ),
            *self.limit_writes(new, room, most),
        ]

    def slide(self, window: int, wrapped: bool, length: int) -> Make:
        new = self.make(length)
        context = 2 * window if wrapped else window // 4
        most = STEPS if wrapped else min(STEPS, (window - context) // length)
        ours = RotatingCache(window)
        dynamic, old = DynamicSlidingWindowLayer(window), self.make(context)
        static = StaticSlidingWindowLayer(2 * window, window)
        for cache in (ours, dynamic, static):
            # In two parts: a static layer returns the first as it is, and keeps it.
            cache.update(*self.make(context - 1))
            cache.update(*self.make(1))
        if not wrapped:
            ours.update(*self.make(window - context))

        def back() -> None:
            if not wrapped:
                ours.trim(ours.offset - context)

        def refill() -> None:
            if not wrapped:  # it refuses to be cropped once its window is full
                dynamic.reset()
                dynamic.update(*old)

        def rewind() -> None:
            if not wrapped:
                static.cumulative_length_int = context
                static.cumulative_length.fill_(context)

        return [
            Contender("ours", "ours", lambda: ours.update(*new), back, most),
            Contender(
                "transformers static", "peer", lambda: static.update(*new), rewind, most
            ),
            Contender(
                "transformers dynamic", "peer", lambda: dynamic.update(*new), refill, most
            ),
            *self.limit_writes(new, 2 * window, most),
        ]

    def limit_writes(self, new: Pair, room: int, most: int) -> Make:
        """K and V go to memory that is there: as far apart as that of a cache, or what is
        written last would still be at hand."""
        length = new[0].shape[2]
        keys, values = self.empty(room), self.empty(room)
        index = torch.arange(room - length, room, device=self.device)
        places = [tuple(map(torch.empty_like, new)) for _ in range(most)]
        place = cycle(places)

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
        like = torch.empty(0, dtype=torch.bool, device=self.device)
        attention = "sdpa"
        if form == "additive":
            like, attention = like.to(self.dtype), "eager"
        before = width - rows
        make: Callable[..., Any] = PreTrainedConfig  # fields of models are not annotated
        config = make(
            num_hidden_layers=1,
            layer_types=["full_attention"],
            attn_implementation=attention,
            dtype=self.dtype,
        )
        embeddings = torch.empty(1, rows, 1, dtype=self.dtype, device=self.device)
        positions = torch.arange(before, width, device=self.device)[None]
        cache = _Behind(before)

        def ask_transformers() -> Any:
            return create_causal_mask(config, embeddings, None, cache, positions)

        def write() -> torch.Tensor:
            return like.new_empty((rows, width)).fill_(1)

        return [
            Contender("ours", "ours", lambda: make_band(rows, rows, before, None, like)),
            Contender("transformers", "peer", ask_transformers),
            Contender("bare write", "limit", write),
        ]

    def unified_mask(self, rows: int, width: int) -> Make:
        cache = self.open(Sizes(1, width, width))
        open_filled(cache, width - rows, rows)
        (_, peer, limit) = self.mask(rows, width, "additive")
        ours = Contender("ours", "ours", lambda: cache.make_mask(cache.get_pass()))
        return [ours, peer, limit]

    def open(self, sizes: Sizes) -> CausalCache:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return CausalCache(sizes, like=like, mask=like)

    def decode(self, cells: int) -> Make:
        ours = Decoding(cells, self.open, self.make)
        rows, width = ours.get_form()
        new = self.make(rows)
        buffers = self.empty(cells), self.empty(cells)
        index = torch.randperm(width, device=self.device)[:rows] + cells - width
        mask = buffers[0].new_empty((rows, width))

        def write() -> None:
            buffers[0].index_copy_(2, index, new[0])
            buffers[1].index_copy_(2, index, new[1])
            mask.fill_(0)

        return [
            Contender("ours", "ours", ours.step, ours.start, ours.most),
            Contender("index_copy_, mask written", "limit", write),
        ]

    def share(self, tokens: int) -> Make:
        ours = self.open(Sizes(2, 2 * tokens, tokens))
        open_filled(ours, 0, tokens)
        ours.put(0, *self.make(tokens))
        dynamic, pair = DynamicLayer(), self.make(tokens)
        dynamic.update(*pair)
        return [
            Contender("ours", "ours", lambda: ours.copy_prefix(0, 1, tokens)),
            Contender("transformers dynamic", "peer", lambda: copy.deepcopy(dynamic)),
            self.limit_clone(pair),
        ]

    def limit_clone(self, pair: Pair, times: int = 1) -> Contender:
        """Copies into fresh memory."""

        def clone() -> None:
            for _ in range(times):
                pair[0].clone()
                pair[1].clone()

        return Contender("plain copy", "limit", clone)

    def remove(self, tokens: int, where: str) -> Make:
        ours = Removing(tokens, where, self.open, self.make)
        contenders = [Contender("ours", "ours", ours.work, ours.start, ours.most)]
        if where == "tail":
            dynamic, pair = DynamicLayer(), self.make(2 * tokens)

            def refill() -> None:
                dynamic.reset()
                dynamic.update(*pair)

            contenders.append(
                Contender(
                    "transformers dynamic",
                    "peer",
                    lambda: dynamic.crop(-tokens),
                    refill,
                    most=1,
                )
            )
            return contenders
        keys = self.make(tokens)[0]
        other = torch.empty_like(keys)
        limit = Contender("plain copy of K", "limit", lambda: other.copy_(keys))
        return [*contenders, limit]

    def keep(self, tokens: int, touched: bool) -> Make:
        token = self.make(1)
        ours, dynamic = KVCache(), DynamicLayer()
        pair = self.make(tokens)
        for cache in (ours, dynamic):
            cache.update(*pair)

        def keep_ours() -> None:
            snapshot = ours.snapshot(0)
            assert snapshot is not None
            if touched:
                ours.trim(1)
                ours.update(*token)
            ours.restore(snapshot, tokens)
            ours.close(snapshot)

        def keep_dynamic() -> None:
            saved = copy.deepcopy(dynamic)
            if touched:
                dynamic.crop(-1)
                dynamic.update(*token)
            dynamic.keys, dynamic.values = saved.keys, saved.values

        return [
            Contender("ours", "ours", keep_ours),
            Contender("transformers dynamic", "peer", keep_dynamic),
            self.limit_clone(pair),
        ]


class _Behind:
    """What the mask builders of transformers ask of a cache that holds some tokens."""

    is_compileable = False

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.is_sliding = [False]

    def get_query_offset(self, layer: int = 0) -> int:
        return self.tokens

    def get_seq_length(self, layer: int = 0) -> int:
        return self.tokens

    def get_mask_sizes(self, length: int, layer: int = 0) -> tuple[int, int]:
        return self.tokens + length, 0
