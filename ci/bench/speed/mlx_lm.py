"""The caches of mlx-lm, as contenders on MLX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    KVCache,
    LRUPromptCache,
    RotatingKVCache,
)

from ci.bench.speed.measure import Contender
from ci.bench.speed.subjects import Batch, Pair, Subject
from ci.bench.speed.works import Prompts


def name(cache: Any) -> str:
    return f"mlx-lm {type(cache).__name__}"


class Released(Subject):
    """A cache of a single sequence, with or without a window."""

    def __init__(self, window: int | None = None) -> None:
        cache = RotatingKVCache(window) if window else KVCache()
        super().__init__(name(cache), cache)

    def update(self, keys: Any, values: Any) -> object:
        return mx.eval(self.cache.update_and_fetch(keys, values))

    def trim(self, count: int) -> object:
        self.cache.trim(count)
        return mx.eval(self.cache.keys, self.cache.values)  # as ours

    def restore(self, saved: Any) -> None:
        self.cache.state = saved.state
        mx.eval(self.cache.state)


def begin(prompts: Prompts, pair: Pair, token: Pair) -> Contender:
    cache = LRUPromptCache(max_size=len(prompts.stored))
    for stored in prompts.stored:
        subject = Released()
        subject.update(*pair)
        cache.insert_cache("model", stored, [subject.cache])

    def work() -> None:
        (nearest,), _ = cache.fetch_nearest_cache("model", prompts.request)
        mx.eval(nearest.update_and_fetch(*token))

    return Contender(name(cache), "peer", work, prompts.draw, most=1)


class ReleasedBatch(Batch):
    """A batch with padding on the left."""

    def __init__(self, old: Pair, lengths: list[int], window: int | None) -> None:
        padding = [max(lengths) - length for length in lengths]
        ring = window and BatchRotatingKVCache(window, padding)
        cache: Any = ring or BatchKVCache(padding)
        super().__init__(name(cache), cache)
        prompts = [mx.repeat(array, len(lengths), axis=0) for array in old]
        mx.eval(cache.update_and_fetch(*prompts))
        if window:  # so that the window wraps, as in our cache
            mx.eval(cache.update_and_fetch(*(array[:, :, :1] for array in prompts)))

    def step(self, keys: Any, values: Any) -> object:
        mask = self.cache.make_mask(1)
        return mx.eval(mask, self.cache.update_and_fetch(keys, values))

    def mask(self) -> object:
        mask = self.cache.make_mask(1)
        mx.eval(mask)
        return mask

    def rewind(self, tokens: int) -> None:
        self.cache.trim(self.cache.size() - tokens)

    def make_filter(self, rows: list[int]) -> Callable[[], object]:
        return lambda: (self.cache.filter(rows), mx.eval(self.cache.state[:2]))

    def start_again(self) -> Callable[[], object]:
        state = self.cache.state
        return lambda: setattr(self.cache, "state", state)

    def extend(self, other: Any) -> object:
        self.cache.extend(other)
        return mx.eval(self.cache.state[:2])

    def extract(self, row: int, token: Pair) -> object:
        return mx.eval(self.cache.extract(row).update_and_fetch(*token))
