"""The cost of a step on MLX: no evaluation of its own, no copy of a buffer; and chunks,
which are copied in wide numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from lockstep.impl.mlx import wide
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.places import COLUMNS, ROWS, Places
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.shared.causal import Sizes

HEADS, DIM = 2, 64
MIB = 1 << 20
Pair = tuple[mx.array, mx.array]


def feed(tokens: int, dtype: mx.Dtype = mx.float16) -> Pair:
    keys = mx.random.normal((1, HEADS, tokens, DIM), dtype)
    mx.eval(keys)
    return keys, -keys


def pass_tokens(cache: CausalCache, positions: range) -> Any:
    cache.forward(positions, [0] * len(positions))
    cache.put(0, *feed(len(positions)))
    return cache.get(0)


@pytest.fixture
def no_evaluation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arrays: Any) -> None:
        raise AssertionError("a step evaluates something on its own")

    tokens = {count: feed(count) for count in (1, 32)}
    monkeypatch.setitem(globals(), "feed", lambda count: tokens[count])
    for name in ("eval", "async_eval", "synchronize"):
        monkeypatch.setattr(mx, name, refuse)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("no_evaluation")
def test_a_step_evaluates_nothing() -> None:
    full, ring = KVCache(step=16), RotatingCache(24, step=8)
    pool = CausalCache(Sizes(1, 256, 32), dtype=mx.float16)
    begin = 0
    for length in (1, 32, 1, 1, 32, 1):
        for cache in (full, ring):
            cache.make_mask(length, length)
            cache.update(*feed(length))
        pass_tokens(pool, range(begin, begin + length))
        begin += length


@pytest.mark.parametrize("length", [1, 32])
@pytest.mark.parametrize("kind", ["kv", "rotating", "pool", "scattered"])
def test_a_step_copies_no_buffer(kind: str, length: int) -> None:
    """Two of 8 MiB, and what a step takes beside them is its own tokens."""
    gc.collect()
    before = mx.get_active_memory()
    tokens = (8 * MIB) // (HEADS * DIM * 2)
    pool = CausalCache(Sizes(2, tokens // 2, 64), dtype=mx.float16)
    caches = {"kv": KVCache(step=tokens), "rotating": RotatingCache(tokens // 2)}
    state = [0]

    def step() -> Any:
        begin, state[0] = state[0], state[0] + length
        if kind in caches:
            return caches[kind].update(*feed(length))
        return pass_tokens(pool, range(begin, begin + length))

    if kind == "scattered":  # every other cell is free
        for begin in range(0, 256, 64):
            rows = [row // 2 for row in range(2 * begin, 2 * begin + 64)]
            pool.forward(rows, [row % 2 for row in range(64)])
            pool.put(0, *feed(64))
            mx.eval(pool.get(0))
        pool.remove(0, 0, None)
    for _ in range(3):
        mx.eval(step())
    mx.reset_peak_memory()
    for _ in range(8):
        mx.eval(step())
    peak = max(mx.get_peak_memory(), mx.get_active_memory())
    assert peak - before < 20 * MIB


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("axis", [ROWS, COLUMNS])
@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize(
    "cells", [range(5, 40), range(7, 80, 2), [9, 3, 77, *range(20, 40)], [4, 8], []]
)
def test_wide_copies_are_copies(
    dtype: mx.Dtype, axis: int, small: int, cells: Any
) -> None:
    places, count = Places(np.array(cells, np.int64), small), len(cells)
    pool = mx.random.normal((1, HEADS, 90, DIM), dtype)
    tokens = mx.random.normal((1, HEADS, count, DIM), dtype)
    if axis == COLUMNS:
        pool, tokens = pool.swapaxes(2, 3), tokens.swapaxes(2, 3)
    wanted = np.array(pool.astype(mx.float32))
    index = (slice(None),) * axis + (list(cells),)
    wanted[index] = np.array(tokens.astype(mx.float32))
    if count:
        pool = places.write(pool, tokens, axis)
    assert pool.dtype == dtype
    assert np.array_equal(np.array(pool.astype(mx.float32)), wanted)
    got = places.read(pool, axis)
    assert got.dtype == dtype
    assert np.array_equal(np.array(got.astype(mx.float32)), wanted[index])


def test_tokens_of_another_dtype_are_converted() -> None:
    buffer = mx.zeros((1, 1, 40, 4), mx.float32)
    tokens = mx.full((1, 1, 20, 4), 3, mx.float16)
    written = wide.write_wide(buffer, tokens, assign(slice(0, 20)))
    assert written.dtype == mx.float32
    assert written[:, :, :20].tolist() == tokens.tolist()


def test_odd_rows_are_copied_as_they_are() -> None:
    seen = []

    def write(buffer: mx.array, tokens: mx.array) -> mx.array:
        seen.append(buffer.dtype)
        return buffer

    for dim, count, small in ((3, 64, 0), (4, 64, 0), (4, 15, 0), (4, 64, 256)):
        array = mx.zeros((1, 1, count, dim), mx.float16)
        wide.write_wide(array, array, write, small)
    assert seen == [mx.float16, mx.uint64, mx.float16, mx.float16]


def assign(where: slice) -> Callable[[mx.array, mx.array], mx.array]:
    def write(buffer: mx.array, tokens: mx.array) -> mx.array:
        buffer[:, :, where] = tokens
        return buffer

    return write


def test_a_snapshot_of_a_whole_buffer_is_copied_once() -> None:
    """By the write, which leaves the old buffer to the snapshot and to who restores
    it."""
    tokens = 1 << 14
    cache, old, new = KVCache(), feed(tokens), feed(1)
    mx.eval(cache.update(*old))
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    cache.trim(1)
    before, size = mx.get_active_memory(), cache.held()["bytes"]
    mx.reset_peak_memory()
    written = cache.update(*new)
    mx.eval(written)
    assert written[0][:, :, -1:].tolist() == new[0].tolist()
    del written
    assert cache.restore(snapshot, tokens)
    cache.close(snapshot)
    mx.eval(cache.view())
    assert mx.get_peak_memory() - before < 1.5 * size
    assert mx.get_active_memory() - before < 0.5 * size
    for got, wanted in zip(cache.view() or (), old, strict=True):
        assert mx.array_equal(got, wanted)
    assert not mx.array_equal(old[0][:, :, -1:], new[0])
    mx.eval(cache.update(*new))  # not into what the caller has given
    assert mx.array_equal((cache.view() or ())[0][:, :, :tokens], old[0])
