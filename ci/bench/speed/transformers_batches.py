"""The caches of transformers with several rows, as contenders on torch."""

from __future__ import annotations

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
from transformers.masking_utils import (
    create_causal_mask,
    create_sliding_window_causal_mask,
)

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.workloads import Make

Pair = tuple[torch.Tensor, torch.Tensor]


class OneLayer:
    """The part of a cache with one layer that mask builders ask."""

    is_compileable = False

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.is_sliding = [layer.is_sliding]

    def get_query_offset(self, layer: int = 0) -> int:
        return self.get_seq_length()

    def get_seq_length(self, layer: int = 0) -> int:
        return int(self.layer.get_seq_length())

    def get_mask_sizes(self, length: int, layer: int = 0) -> Any:
        return self.layer.get_mask_sizes(length)


def make_asker(layer: Any, lengths: list[int], window: int | None) -> Callable[[], Any]:
    """Asks for the mask of the next token, with padding on the left."""
    make: Callable[..., Any] = PreTrainedConfig  # fields of models are not annotated
    kind = "sliding_attention" if window else "full_attention"
    config = make(
        num_hidden_layers=1,
        layer_types=[kind],
        sliding_window=window,
        attn_implementation="sdpa",
        dtype=layer.keys.dtype,
    )
    tokens, rows = max(lengths), len(lengths)
    cache = OneLayer(layer)
    embeddings = layer.keys.new_empty(rows, 1, 1)
    padding = tokens - torch.tensor(lengths)[:, None]
    real = torch.arange(tokens + STEPS + 1) >= padding  # as long as it will get
    build = create_sliding_window_causal_mask if window else create_causal_mask

    def ask() -> Any:
        offset = cache.get_seq_length()
        positions = (offset - padding).clamp(min=0)
        return build(config, embeddings, real[:, : offset + 1], cache, positions)

    return ask


def open_layers(old: Pair, lengths: list[int], window: int | None) -> list[Any]:
    tokens = max(lengths)
    layers = (
        [DynamicSlidingWindowLayer(window), StaticSlidingWindowLayer(2 * window, window)]
        if window
        else [DynamicLayer(), StaticLayer(tokens + STEPS)]
    )
    prompts = [array.repeat(len(lengths), 1, 1, 1) for array in old]
    for layer in layers:
        # In two parts: a static sliding layer returns the first as it is, and keeps it.
        for part in (slice(tokens - 1), slice(tokens - 1, None)):
            layer.update(*(array[:, :, part] for array in prompts))
        if window:  # it turns, as ours
            layer.update(*(array[:, :, :1] for array in prompts))
    return layers


def batch_step(old: Pair, new: Pair, lengths: list[int], window: int | None) -> Make:
    dynamic, static = open_layers(old, lengths, window)
    tokens = max(lengths)

    def work(layer: Any) -> Callable[[], object]:
        ask = make_asker(layer, lengths, window)
        return lambda: (ask(), layer.update(*new))

    def shorten() -> None:
        if not window:
            dynamic.crop(tokens - dynamic.get_seq_length())

    def rewind() -> None:
        if not window:
            static.cumulative_length.fill_(tokens)

    steps = STEPS if window is None else 1
    return [
        Contender("transformers static", "peer", work(static), rewind, STEPS),
        Contender("transformers dynamic", "peer", work(dynamic), shorten, min(4, steps)),
    ]


def batch_mask(old: Pair, lengths: list[int], window: int | None) -> Make:
    dynamic = open_layers(old, lengths, window)[0]
    return [
        Contender("transformers dynamic", "peer", make_asker(dynamic, lengths, window))
    ]


def batch_filter(
    old: Pair, lengths: list[int], window: int | None, rows: list[int]
) -> Make:
    dynamic = open_layers(old, lengths, window)[0]
    held, index = (dynamic.keys, dynamic.values), torch.tensor(rows)

    def start() -> None:
        dynamic.keys, dynamic.values = held

    work = lambda: dynamic.batch_select_indices(index)  # noqa: E731
    return [Contender("transformers dynamic", "peer", work, start, most=1)]


def batch_extend(old: Pair, lengths: list[int], window: int | None) -> Make:
    """None of its caches does this."""
    return []


def batch_extract(old: Pair, token: Pair, lengths: list[int], window: int | None) -> Make:
    """None of its caches does this."""
    return []
