"""The caches of transformers, as contenders on torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
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

from ci.bench.speed.measure import Contender
from ci.bench.speed.workloads import Make

Pair = tuple[torch.Tensor, torch.Tensor]


def extend(old: Pair, new: Pair, most: int) -> Make:
    context, length = old[0].shape[2], new[0].shape[2]
    dynamic, static = DynamicLayer(), StaticLayer(context + most * length)
    dynamic.update(*old)
    static.update(*old)
    return [
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
    ]


def slide(old: Pair, new: Pair, window: int, most: int) -> Make:
    context = old[0].shape[2]
    dynamic = DynamicSlidingWindowLayer(window)
    static = StaticSlidingWindowLayer(2 * window, window)
    for cache in (dynamic, static):
        # In two parts: a static layer returns the first as it is, and keeps it.
        for part in (slice(context - 1), slice(context - 1, None)):
            cache.update(*(array[:, :, part] for array in old))
    wrapped = context > window

    def refill() -> None:
        if not wrapped:  # it refuses to be cropped once its window is full
            dynamic.reset()
            dynamic.update(*old)

    def rewind() -> None:
        if not wrapped:
            static.cumulative_length_int = context
            static.cumulative_length.fill_(context)

    return [
        Contender(
            "transformers static", "peer", lambda: static.update(*new), rewind, most
        ),
        Contender(
            "transformers dynamic", "peer", lambda: dynamic.update(*new), refill, most
        ),
    ]


def mask(rows: int, width: int, form: str, like: torch.Tensor) -> Make:
    make: Callable[..., Any] = PreTrainedConfig  # fields of models are not annotated
    config = make(
        num_hidden_layers=1,
        layer_types=["full_attention"],
        attn_implementation="eager" if form == "additive" else "sdpa",
        dtype=like.dtype,
    )
    embeddings = like.new_empty(1, rows, 1)
    positions = torch.arange(width - rows, width, device=like.device)[None]
    cache = _Behind(width - rows)

    def ask() -> Any:
        return create_causal_mask(config, embeddings, None, cache, positions)

    return [Contender("transformers", "peer", ask)]


def share(old: Pair, new: Pair) -> Make:
    dynamic = DynamicLayer()
    dynamic.update(*old)
    work = lambda: copy.deepcopy(dynamic).update(*new)  # noqa: E731
    return [Contender("transformers dynamic", "peer", work)]


def trim(old: Pair, tokens: int) -> Make:
    dynamic = DynamicLayer()

    def refill() -> None:
        dynamic.reset()
        dynamic.update(*old)

    work = lambda: dynamic.crop(-tokens)  # noqa: E731
    return [Contender("transformers dynamic", "peer", work, refill, most=1)]


def keep(old: Pair, token: Pair, touched: bool) -> Make:
    dynamic = DynamicLayer()
    dynamic.update(*old)

    def work() -> None:
        saved = copy.deepcopy(dynamic)
        if touched:
            dynamic.crop(-1)
            dynamic.update(*token)
        dynamic.keys, dynamic.values = saved.keys, saved.values

    return [Contender("transformers dynamic", "peer", work)]


class _Behind:
    """The part of a cache with some tokens that mask builders ask."""

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


def begin(*_: Any) -> Make:
    """It has no cache of prompts."""
    return []
