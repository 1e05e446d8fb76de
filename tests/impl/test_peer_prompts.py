"""mlx-lm's `LRUPromptCache` with limits, and over layers that no program of the prefix
contract gives it: what it returns holds exactly the tokens that it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

pytest.importorskip("mlx_lm")

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    KVCache,
    LRUPromptCache,
    QuantizedKVCache,
    RotatingKVCache,
)

WINDOW, STEPS, HISTORIES = 4, 60, 12
MODELS: dict[str, Sequence[Callable[[], Any]]] = {
    "full": (KVCache,),
    "ring": (KVCache, lambda: RotatingKVCache(WINDOW)),
    "quantized": (lambda: QuantizedKVCache(group_size=32, bits=8),),
    "recurrent": (KVCache, lambda: ArraysCache(size=2)),
}
Tokens = list[int]


def feed(caches: Sequence[Any], tokens: Tokens) -> None:
    """Computes tokens: K and V of a token are its number, and so is a state."""
    for cache in caches:
        if isinstance(cache, ArraysCache):
            read = [] if cache[0] is None else cache[0].tolist()
            cache[0] = cache[1] = mx.array([*read, *tokens])
        elif tokens:
            row = mx.array(tokens, mx.float32)[None, None, :, None]
            rows = mx.broadcast_to(row / 8, (1, 1, len(tokens), 32))
            cache.update_and_fetch(rows, rows)


def read(cache: Any) -> Tokens:
    """The tokens in a cache, in order; a ring has the last ones."""
    if isinstance(cache, ArraysCache):
        return [] if cache[0] is None else [int(token) for token in cache[0].tolist()]
    keys, _, offset = cache.state[:3]
    if keys is None or offset == 0:
        return []
    if isinstance(cache, RotatingKVCache):
        keys = cache._temporal_order(keys)  # there is no public way to the order
    if isinstance(cache, QuantizedKVCache):
        cut = [part[..., :offset, :] for part in keys]
        keys = mx.dequantize(*cut, group_size=32, bits=8)
    return [round(number * 8) for number in keys[0, 0, :offset, 0].tolist()]


def draw_prompt(random: Random, known: Sequence[Tokens]) -> Tokens:
    """A new prompt, or one that shares a beginning with a known one."""
    base = random.choice(known)[: random.randint(0, 9)] if known else []
    more = [random.randint(1, 3) for _ in range(random.randint(0, 4))]
    return [*base, *more] or [1]


class Server:
    """What `mlx_lm.server` does with its prompt cache, with every step checked."""

    def __init__(self, model: str, random: Random, **limits: int) -> None:
        self.makers, self.random = MODELS[model], random
        self.stored = LRUPromptCache(**limits)
        self.limits = limits
        self.known: list[Tokens] = []
        self.reused = 0

    def serve(self) -> None:
        tokens = draw_prompt(self.random, self.known)
        caches, rest = self.stored.fetch_nearest_cache("model", list(tokens))
        reused = len(tokens) - len(rest)
        assert tokens[reused:] == rest
        if caches is None:
            assert reused == 0
            caches = [make() for make in self.makers]
        self.check(caches, tokens[:reused])
        self.reused += reused
        answer = [self.random.randint(1, 3) for _ in range(self.random.randint(0, 3))]
        feed(caches, [*rest, *answer])
        tokens = [*tokens, *answer]
        self.stored.insert_cache("model", tokens, caches)
        self.known.append(tokens)

    def check(self, caches: Sequence[Any], tokens: Tokens) -> None:
        for cache in caches:
            held = read(cache)
            assert held == tokens[len(tokens) - len(held) :]
            is_ring = isinstance(cache, RotatingKVCache)
            assert len(held) >= min(len(tokens), WINDOW if is_ring else len(tokens))

    def check_limits(self, **limits: int) -> None:
        size = limits.get("n_sequences", self.limits.get("max_size", 10))
        most = limits.get("n_bytes", self.limits.get("max_bytes", 1 << 63))
        assert len(self.stored) <= size
        assert self.stored.nbytes <= most
        by_type = self.stored.stats_by_type().values()
        assert sum(each["n_sequences"] for each in by_type) == len(self.stored)
        assert sum(each["n_bytes"] for each in by_type) == self.stored.nbytes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limits", [{}, {"max_size": 2}, {"max_bytes": 200_000}])
def test_what_is_reused_is_right_and_limits_hold(
    model: str, limits: dict[str, int]
) -> None:
    reused = 0
    for number in range(HISTORIES):
        random = Random(number)
        server = Server(model, random, **limits)
        for _ in range(STEPS):
            server.serve()
            server.check_limits()
            if random.random() < 0.1:
                count = random.randint(0, 2)
                server.stored.trim_to(n_sequences=count)
                server.check_limits(n_sequences=count)
            if random.random() < 0.1:
                most = random.choice([0, 70_000, 300_000])
                server.stored.trim_to(n_bytes=most)
                server.check_limits(n_bytes=most)
        reused += server.reused
    assert reused > HISTORIES * STEPS / 8
