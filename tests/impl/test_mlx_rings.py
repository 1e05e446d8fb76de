"""Windows on MLX: rows of a batch that go on alone."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import pytest
from frameworks import HEADS, KEY_DIM, VALUE_DIM, Framework

WINDOW = 4
TOKEN_BYTES = 4 * HEADS * (KEY_DIM + VALUE_DIM)


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


def extract(on: Framework, tokens: int, window: int = WINDOW, step: int = 4) -> Any:
    """A row that got the numbers from 0 on, out of a batch of two with unused memory full
    of NaN; the other row is a token longer, and goes on."""
    batch = on.batch(2, window, step=step, fill=math.nan)
    for number in range(tokens):
        batch.update(*on.feed_rows([[number], [number + 1000]]))
    cache = batch.extract(0)
    batch.update(*on.feed_rows([[2000], [2000]]))
    mx.eval(batch.pool.arrays)
    return cache


def go_on(on: Framework, cache: Any, length: int) -> list[float]:
    """The numbers that an update returns; its tokens have the numbers that follow. One
    token sees the others in any order."""
    numbers = range(cache.offset, cache.offset + length)
    seen = on.hold(cache.update(*on.feed(numbers)))
    return sorted(seen) if length == 1 else seen


def count_tokens(cache: Any) -> int:
    return cache.held()["bytes"] // TOKEN_BYTES


def test_a_full_window_goes_on_as_a_ring(on: Framework) -> None:
    """Its tokens 2 to 5 stay in the columns 2, 3, 0 and 1."""
    cache = extract(on, 6)
    assert (count_tokens(cache), cache.memory.columns.find(2, 3)[0][1]) == (4, 2)
    assert on.hold(cache.view()) == [2, 3, 4, 5]
    for last in range(6, 12):
        assert go_on(on, cache, 1) == [last - 3, last - 2, last - 1, last]
        assert (count_tokens(cache), cache.memory.columns.find(2, 3)[0][1]) == (4, 2)


def test_a_row_has_nothing_beside_its_tokens(on: Framework) -> None:
    memory = extract(on, 3).memory
    keys = on.numpy(memory.buffers[0])[0, 0, :, 0]
    assert [number for number in keys.tolist() if not math.isnan(number)] == [0, 1, 2]


def test_a_row_with_few_tokens_takes_little_memory(on: Framework) -> None:
    cache = extract(on, 3, window=100)
    assert (count_tokens(cache), cache.memory.columns.base) == (4, 0)
    assert on.hold(cache.view()) == [0, 1, 2]


def test_the_first_step_of_a_row_copies_nothing(on: Framework) -> None:
    room = 1 << 13
    batch = on.batch(2, room, step=256)
    batch.update(*on.feed_wide(room, rows=2))
    batch.update(*on.feed_wide(1, rows=2))
    cache = batch.extract(1)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(cache.update(*on.feed_wide(1)))
    assert mx.get_peak_memory() - before < room * TOKEN_BYTES // 16
