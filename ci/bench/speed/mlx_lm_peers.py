"""The caches of mlx-lm, as contenders on MLX."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache, RotatingKVCache

from ci.bench.speed.measure import Contender
from ci.bench.speed.prompts import Prompts
from ci.bench.speed.workloads import Make

Pair = tuple[mx.array, mx.array]


def make_peer(cache: Any, *args: Any, **options: Any) -> Contender:
    return Contender(f"mlx-lm {type(cache).__name__}", "peer", *args, **options)


def fill(cache: Any, pair: Pair) -> Any:
    mx.eval(cache.update_and_fetch(*pair))
    return cache


def update(cache: Any, new: Pair) -> Callable[[], object]:
    return lambda: mx.eval(cache.update_and_fetch(*new))


def extend(old: Pair, new: Pair, most: int) -> Make:
    context, peer = old[0].shape[2], fill(KVCache(), old)
    for _ in range(most):  # as far as it will grow
        fill(peer, new)
    back = lambda: peer.trim(peer.offset - context)  # noqa: E731
    return [make_peer(peer, update(peer, new), back, most)]


def slide(old: Pair, new: Pair, window: int, most: int) -> Make:
    context, peer = old[0].shape[2], RotatingKVCache(window)
    for part in (slice(context - 1), slice(context - 1, None)):
        fill(peer, (old[0][:, :, part], old[1][:, :, part]))

    def back() -> None:
        if context < window:
            peer.trim(peer.offset - context)

    return [make_peer(peer, update(peer, new), back, most)]


def share(old: Pair, new: Pair) -> Make:
    peer = fill(KVCache(), old)
    return [make_peer(peer, lambda: fill(copy.deepcopy(peer), new))]


def trim(old: Pair, tokens: int) -> Make:
    peer = fill(KVCache(), old)

    def refill() -> None:
        peer.offset = 2 * tokens

    def work() -> None:
        peer.trim(tokens)
        mx.eval(peer.keys, peer.values)  # as ours: nothing is put off

    return [make_peer(peer, work, refill, most=1)]


def keep(old: Pair, token: Pair, touched: bool) -> Make:
    peer = fill(KVCache(), old)

    def work() -> None:
        saved = copy.deepcopy(peer)
        if touched:
            peer.trim(1)
            fill(peer, token)
        peer.state = saved.state
        mx.eval(peer.state)

    return [make_peer(peer, work)]


def begin(prompts: Prompts, pair: Pair, token: Pair) -> Make:
    peer = LRUPromptCache(max_size=len(prompts.stored))
    for stored in prompts.stored:
        peer.insert_cache("model", stored, [fill(KVCache(), pair)])

    def work() -> None:
        (cache,), _ = peer.fetch_nearest_cache("model", prompts.request)
        mx.eval(cache.update_and_fetch(*token))

    return [make_peer(peer, work, prompts.draw, most=1)]
