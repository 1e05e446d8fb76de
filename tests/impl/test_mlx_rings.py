"""Windows on MLX: rows of a batch that go on alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
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


@pytest.mark.parametrize("lengths", [[1], [2], [3, 1], [5, 1, 1, 1], [1, 1, 1, 4], [9]])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 6, 11])
@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_a_row_goes_on(
    on: Framework, window: int, tokens: int, lengths: Sequence[int]
) -> None:
    """Unused memory is NaN, which `hold` does not accept."""
    cache = extract(on, tokens, window, step=2)
    for _, length in zip(range(40), cycle(lengths), strict=False):
        first, end = max(0, cache.offset - window + 1), cache.offset + length
        assert go_on(on, cache, length) == [*range(first, end)]
        assert on.hold(cache.view()) == [*range(max(0, end - window), end)]


def test_a_row_is_trimmed_until_tokens_are_evicted(on: Framework) -> None:
    cache = extract(on, 4)
    assert cache.trim(3) == 3
    assert go_on(on, cache, 2) == [0, 1, 2]
    assert go_on(on, cache, 4) == [0, 1, 2, 3, 4, 5, 6]
    assert cache.trim(1) == 0
    assert go_on(on, cache, 1) == [4, 5, 6, 7]


def decode(on: Framework, cache: Any) -> list[float]:
    for _ in range(10):
        found = go_on(on, cache, 1)
    return found


def feed_chunk(on: Framework, cache: Any) -> list[float]:
    go_on(on, cache, 9)
    return go_on(on, cache, 1)


AWAY = pytest.mark.parametrize("away", [decode, feed_chunk])
Away = Callable[[Framework, Any], list[float]]


@AWAY
@pytest.mark.parametrize("before", [0, 1, 5])
def test_clones_of_a_row_go_apart(on: Framework, before: int, away: Away) -> None:
    """With the layout of the row, and with a later one that has a twin."""
    cache = extract(on, 6)
    for _ in range(before):
        go_on(on, cache, 1)
    clone, end = cache.clone(), 6 + before
    assert away(on, cache) == [*range(end + 6, end + 10)]
    assert on.hold(clone.view()) == [*range(end - 4, end)]
    assert away(on, clone) == [*range(end + 6, end + 10)]
    assert on.hold(cache.view()) == on.hold(clone.view())


@AWAY
@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_snapshot_of_a_row_is_restored(on: Framework, before: int, away: Away) -> None:
    cache = extract(on, 6)
    for _ in range(before):
        go_on(on, cache, 1)
    snapshot, end = cache.snapshot(0), 6 + before
    assert away(on, cache) == [*range(end + 6, end + 10)]
    assert on.hold(snapshot.read()) == [*range(end - 4, end)]
    assert cache.restore(snapshot, end)
    assert on.hold(cache.view()) == [*range(end - 4, end)]
    assert away(on, cache) == [*range(end + 6, end + 10)]


def test_a_row_goes_back_to_before_it_was_taken(on: Framework) -> None:
    """To positions before those with which its ring was laid out."""
    early = extract(on, 3)
    snapshot, cache = early.snapshot(0), extract(on, 30)
    go_on(on, early, 5)  # the snapshot has a copy now
    decode(on, cache)
    assert cache.restore(snapshot, 3)
    assert on.hold(cache.view()) == [0, 1, 2]
    assert cache.trim(1) == 1
    assert go_on(on, cache, 2) == [0, 1, 2, 3]
    assert decode(on, cache) == [10, 11, 12, 13]


def test_a_row_that_went_on_joins_again(on: Framework) -> None:
    cache = extract(on, 6)
    decode(on, cache)
    batch = on.stack([cache, extract(on, 5)])
    assert [sorted(on.hold(part)) for part in batch.state()] == [
        [12, 13, 14, 15],
        [1, 2, 3, 4],
    ]
