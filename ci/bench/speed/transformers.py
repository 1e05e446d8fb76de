"""The caches of transformers, as contenders on torch."""

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
from ci.bench.speed.subjects import Batch, Pair, Subject
from ci.bench.speed.workloads import Contenders

DYNAMIC, STATIC = "transformers dynamic", "transformers static"


class Dynamic(Subject):
    """A cache that makes new arrays in each update; if its window is full, it cannot be
    cropped."""

    def __init__(self, window: int | None) -> None:
        layer = DynamicSlidingWindowLayer(window) if window else DynamicLayer()
        super().__init__(DYNAMIC, layer)
        self.window = window
        self.most = STEPS if window else 4

    def update(self, keys: Any, values: Any) -> object:
        return self.cache.update(keys, values)

    def rewind(self, old: Pair) -> None:
        if self.window:
            self.refill(old)
        else:
            self.cache.crop(old[0].shape[2] - self.cache.get_seq_length())

    def clear(self) -> None:
        self.cache.reset()

    def trim(self, count: int) -> object:
        return self.cache.crop(-count)

    def restore(self, saved: Any) -> None:
        self.cache.keys, self.cache.values = saved.keys, saved.values


class Static(Subject):
    """A cache with memory for `room` tokens, or for twice the window."""

    def __init__(self, window: int | None, room: int) -> None:
        ring = window and StaticSlidingWindowLayer(2 * window, window)
        super().__init__(STATIC, ring or StaticLayer(room))

    def update(self, keys: Any, values: Any) -> object:
        return self.cache.update(keys, values)

    def rewind(self, old: Pair) -> None:
        rewind(self.cache, old[0].shape[2])


def rewind(layer: Any, tokens: int) -> None:
    layer.cumulative_length.fill_(tokens)
    if layer.is_sliding:
        layer.cumulative_length_int = tokens


class Context:
    """The part of a cache with one layer that mask builders read.

    Args:
        count: returns the number of tokens before the query.
        measure: returns the number of columns of the mask for a number of queries, and
            the position of the first column.
    """

    is_compileable = False

    def __init__(self, is_sliding: bool, count: Callable[[], int], measure: Any) -> None:
        self.is_sliding, self.count, self.measure = [is_sliding], count, measure

    def get_query_offset(self, layer: int = 0) -> int:
        return self.count()

    def get_seq_length(self, layer: int = 0) -> int:
        return self.count()

    def get_mask_sizes(self, length: int, layer: int = 0) -> Any:
        return self.measure(length)


def make_config(window: int | None, attention: str, dtype: torch.dtype) -> Any:
    make: Callable[..., Any] = PreTrainedConfig  # fields of models are not annotated
    return make(
        num_hidden_layers=1,
        layer_types=["sliding_attention" if window else "full_attention"],
        sliding_window=window,
        attn_implementation=attention,
        dtype=dtype,
    )


def mask(rows: int, width: int, form: str, like: torch.Tensor) -> Contenders:
    before = width - rows
    config = make_config(None, "eager" if form == "additive" else "sdpa", like.dtype)
    embeddings = like.new_empty(1, rows, 1)
    positions = torch.arange(before, width, device=like.device)[None]
    cache = Context(False, lambda: before, lambda length: (before + length, 0))

    def build() -> Any:
        return create_causal_mask(config, embeddings, None, cache, positions)

    return [Contender("transformers", "peer", build)]


class LayerBatch(Batch):
    """A cache layer with several rows, which are padded on the left."""

    can_join = False

    def __init__(self, layer: Any, lengths: list[int], window: int | None) -> None:
        super().__init__(STATIC if layer.is_compileable else DYNAMIC, layer)
        self.tokens = max(lengths)
        self.most = STEPS if layer.is_compileable or window else 4
        self.config = make_config(window, "sdpa", layer.keys.dtype)
        self.embeddings = layer.keys.new_empty(len(lengths), 1, 1)
        self.padding = self.tokens - torch.tensor(lengths)[:, None]
        ends = torch.arange(self.tokens + STEPS + 1)  # for the maximal length
        self.real = ends >= self.padding
        self.build = create_sliding_window_causal_mask if window else create_causal_mask
        self.context = Context(
            layer.is_sliding, lambda: int(layer.get_seq_length()), layer.get_mask_sizes
        )

    def mask(self) -> object:
        offset = self.context.count()
        positions = (offset - self.padding).clamp(min=0)
        real = self.real[:, : offset + 1]
        return self.build(self.config, self.embeddings, real, self.context, positions)

    def step(self, keys: Any, values: Any) -> object:
        return self.mask(), self.cache.update(keys, values)

    def rewind(self, tokens: int) -> None:
        if self.name == STATIC:
            rewind(self.cache, tokens)
        else:
            self.cache.crop(tokens - self.cache.get_seq_length())

    def make_filter(self, rows: list[int]) -> Callable[[], object]:
        index = torch.tensor(rows)
        return lambda: self.cache.batch_select_indices(index)

    def start_again(self) -> Callable[[], object]:
        arrays = self.cache.keys, self.cache.values

        def start() -> None:
            self.cache.keys, self.cache.values = arrays

        return start


def open_batches(old: Pair, lengths: list[int], window: int | None) -> list[Batch]:
    prompts = tuple(array.repeat(len(lengths), 1, 1, 1) for array in old)
    batches: list[Batch] = []
    for subject in (Static(window, max(lengths) + STEPS), Dynamic(window)):
        subject.fill((prompts[0], prompts[1]))
        if window:  # so that the window wraps, as in our cache
            subject.update(*(array[:, :, :1] for array in prompts))
        batches.append(LayerBatch(subject.cache, lengths, window))
    return batches
