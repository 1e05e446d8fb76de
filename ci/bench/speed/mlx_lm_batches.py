"""The batched caches of mlx-lm, as contenders on MLX."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, BatchRotatingKVCache

from ci.bench.speed.measure import Contender
from ci.bench.speed.workloads import Make

Pair = tuple[mx.array, mx.array]


def open_cache(old: Pair, lengths: list[int], window: int | None) -> Any:
    """Returns a batch with prompts of these lengths, padded on the left."""
    padding = [max(lengths) - length for length in lengths]
    cache = BatchRotatingKVCache(window, padding) if window else BatchKVCache(padding)
    rows = len(lengths)
    prompts = [mx.repeat(array, rows, axis=0) for array in old]
    mx.eval(cache.update_and_fetch(*prompts))
    if window:  # it turns, as ours
        mx.eval(cache.update_and_fetch(*(array[:, :, :1] for array in prompts)))
    return cache


def make_peer(cache: Any, *arguments: Any) -> Contender:
    return Contender(f"mlx-lm {type(cache).__name__}", "peer", *arguments)


def batch_step(old: Pair, new: Pair, lengths: list[int], window: int | None) -> Make:
    peer = open_cache(old, lengths, window)

    def work() -> None:
        mask = peer.make_mask(1)
        mx.eval(mask, peer.update_and_fetch(*new))

    def back() -> None:
        if not window:
            peer.trim(peer.size() - max(lengths))

    return [make_peer(peer, work, back)]


def batch_mask(old: Pair, lengths: list[int], window: int | None) -> Make:
    peer = open_cache(old, lengths, window)

    def work() -> mx.array:
        mask = peer.make_mask(1)
        mx.eval(mask)
        return mask

    return [make_peer(peer, work)]


def start_again(peer: Any) -> Any:
    """It replaces its arrays, so that these need no copy."""
    state = peer.state

    def start() -> None:
        peer.state = state

    return start


def batch_filter(
    old: Pair, lengths: list[int], window: int | None, rows: list[int]
) -> Make:
    peer = open_cache(old, lengths, window)

    def work() -> None:
        peer.filter(rows)
        mx.eval(peer.state[:2])

    return [make_peer(peer, work, start_again(peer), 1)]


def batch_extend(old: Pair, lengths: list[int], window: int | None) -> Make:
    peer, one = (open_cache(old, rows, window) for rows in (lengths, lengths[:1]))

    def work() -> None:
        peer.extend(one)
        mx.eval(peer.state[:2])

    return [make_peer(peer, work, start_again(peer), 1)]


def batch_extract(old: Pair, token: Pair, lengths: list[int], window: int | None) -> Make:
    peer = open_cache(old, lengths, window)
    return [make_peer(peer, lambda: mx.eval(peer.extract(5).update_and_fetch(*token)))]
