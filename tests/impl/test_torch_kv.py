"""The full cache on torch: what a step costs, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.impl.torch.kv import KVCache

Feed = Callable[..., tuple[Any, Any]]
See = Callable[[Any], list[int]]

KEY_BYTES, VALUE_BYTES = 2 * 4 * 4, 2 * 3 * 4  # of one token: heads, dim, float32


def fill(cache: KVCache, feed: Feed, count: int) -> KVCache:
    cache.update(*feed(cache.offset, count))
    return cache


def get_places(cache: KVCache) -> tuple[int, int]:
    assert cache.memory.buffers is not None
    keys, values = cache.memory.buffers
    return keys.tensor.data_ptr(), values.tensor.data_ptr()


def test_a_step_copies_nothing_until_the_memory_is_full(feed: Feed, see: See) -> None:
    cache = fill(KVCache(step=8), feed, 3)
    places = get_places(cache)
    for number in range(3, 8):
        keys, values = cache.update(*feed(number))
        assert (keys.data_ptr(), values.data_ptr()) == places
        assert get_places(cache) == places
    assert see(cache.view()) == list(range(8))
    cache.update(*feed(8))
    assert get_places(cache) != places
    assert see(cache.view()) == list(range(9))


@pytest.mark.parametrize(("step", "most"), [(1, 15), (16, 11), (256, 7), (4096, 3)])
def test_ten_thousand_steps_move_house_a_few_times(
    feed: Feed, step: int, most: int
) -> None:
    cache, capacities, token = KVCache(step), [], feed(7)
    for _ in range(10_000):
        cache.update(*token)
        if cache.memory.capacity not in capacities:
            capacities.append(cache.memory.capacity)
    assert len(capacities) <= most
    assert capacities[-1] < 20_000 + step


def test_a_long_update_takes_no_more_than_it_needs(feed: Feed) -> None:
    cache = fill(KVCache(step=16), feed, 100)
    assert cache.memory.capacity == 112


@pytest.mark.parametrize("count", [-1, -100])
def test_trim_refuses_less_than_nothing(feed: Feed, see: See, count: int) -> None:
    cache = fill(KVCache(), feed, 3)
    with pytest.raises(ValueError, match=f"count {count} is negative"):
        cache.trim(count)
    assert see(cache.view()) == [0, 1, 2]


def test_merge_refuses_what_is_not_adjacent_and_consumes_nothing(
    feed: Feed, see: See
) -> None:
    cache = fill(KVCache(), feed, 4)
    parent, child = cache.snapshot(0), cache.snapshot(3)
    with pytest.raises(ValueError, match=r"\[0, 4\) and \[3, 4\) are not adjacent"):
        cache.merge(parent, child)
    assert parent is not None
    assert child is not None
    assert (see(parent.read()), see(child.read())) == ([0, 1, 2, 3], [3])


def test_merge_with_nothing_closes_the_other(feed: Feed) -> None:
    cache = fill(KVCache(), feed, 4)
    for position in (0, 1):
        snapshot = cache.snapshot(0)
        assert snapshot is not None
        sides = (snapshot, None) if position == 0 else (None, snapshot)
        assert cache.merge(*sides) is None
        with pytest.raises(ValueError, match="closed"):
            snapshot.read()


def test_split_and_merge_consume_their_inputs(feed: Feed, see: See) -> None:
    cache = fill(KVCache(), feed, 5)
    whole = cache.snapshot(1)
    assert whole is not None
    left, right = cache.split(whole, 3)
    assert left is not None
    assert right is not None
    with pytest.raises(ValueError, match="closed"):
        whole.read()
    merged = cache.merge(left, right)
    assert merged is not None
    assert (see(merged.read()), merged.nbytes) == ([1, 2, 3, 4], 0)
    for part in (left, right):
        with pytest.raises(ValueError, match="closed"):
            part.read()


def test_split_of_what_was_copied_gives_parts_of_their_own(feed: Feed, see: See) -> None:
    cache = fill(KVCache(), feed, 5)
    whole = cache.snapshot(0)
    assert whole is not None
    cache.free()
    left, right = cache.split(whole, 2)
    assert left is not None
    assert right is not None
    assert (see(left.read()), see(right.read())) == ([0, 1], [2, 3, 4])
    assert left.nbytes == 2 * (KEY_BYTES + VALUE_BYTES)
    assert right.nbytes == 3 * (KEY_BYTES + VALUE_BYTES)
    assert left.read()[0].untyped_storage().nbytes() == 2 * KEY_BYTES


def test_closing_twice_and_reading_what_is_closed(feed: Feed) -> None:
    cache = fill(KVCache(), feed, 3)
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    cache.close(snapshot)
    with pytest.raises(ValueError, match=r"snapshot \[0, 3\) was closed before"):
        cache.close(snapshot)
    with pytest.raises(ValueError, match=r"snapshot \[0, 3\) has been closed"):
        snapshot.read()


def test_a_restore_that_fails_changes_nothing(feed: Feed, see: See) -> None:
    """A snapshot that was closed, and one of a cache with other heads."""
    cache, other = fill(KVCache(), feed, 3), KVCache()
    other.update(*feed(0, 4, heads=3))
    closed, foreign = cache.snapshot(1), other.snapshot(1)
    assert closed is not None
    closed.close()
    with pytest.raises(ValueError, match="has been closed"):
        cache.restore(closed, 3)
    assert (cache.offset, see(cache.view())) == (3, [0, 1, 2])
    with pytest.raises((ValueError, RuntimeError)):
        cache.restore(foreign, 4)
    assert (cache.offset, see(cache.view())) == (3, [0, 1, 2])


def test_an_update_of_another_shape_is_refused(feed: Feed, see: See) -> None:
    """Broadcasting would write one head into all, or one value under every key."""
    cache = fill(KVCache(), feed, 3)
    keys, values = feed(3, 2)
    for bad in (feed(3, 2, heads=1), feed(3, 2, heads=3), (keys, values[:, :, :1])):
        with pytest.raises((ValueError, RuntimeError)):
            cache.update(*bad)
        assert (cache.offset, see(cache.view())) == (3, [0, 1, 2])


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([5, 4], "do not ascend"),
        ([4, 4], "do not ascend"),
        ([2, 9], "offset 2 is behind the cache, at 3"),
        ([-1], "behind"),
    ],
)
def test_prepare_refuses(feed: Feed, offsets: list[int], words: str) -> None:
    cache = fill(KVCache(), feed, 3)
    with pytest.raises(ValueError, match=words):
        cache.prepare(offsets)
    assert cache.take() == []


def test_prepare_refuses_while_captures_wait(feed: Feed, see: See) -> None:
    cache = fill(KVCache(), feed, 1)
    cache.prepare([2, 9])
    with pytest.raises(ValueError, match="not taken yet"):
        cache.prepare([3])
    fill(cache, feed, 3)
    with pytest.raises(ValueError, match="not taken yet"):
        cache.prepare([5])
    first, second = cache.take()
    assert first is not None
    assert (see(first.read()), second) == ([1], None)
    cache.prepare([5])


# --- lazy snapshots ---------------------------------------------------------------------


@pytest.mark.parametrize("change", ["append", "grow", "trim", "clone", "read", "prepare"])
def test_a_snapshot_owns_nothing_while_nothing_would_destroy_it(
    feed: Feed, see: See, change: str
) -> None:
    cache = fill(KVCache(step=8), feed, 4)
    snapshot = cache.snapshot(1)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    if change == "append":
        fill(cache, feed, 2)
    elif change == "grow":
        fill(cache, feed, 100)
    elif change == "trim":
        cache.trim(2)
    elif change == "clone":
        cache.clone().update(*feed(50))
    elif change == "prepare":
        cache.prepare([6])
        fill(cache, feed, 4)
    assert see(snapshot.read()) == [1, 2, 3]
    assert (snapshot.nbytes, copied) == (0, [])


@pytest.mark.parametrize("change", ["overwrite", "restore", "free"])
def test_a_snapshot_copies_once_before_it_would_change(
    feed: Feed, see: See, change: str
) -> None:
    cache, other = fill(KVCache(step=8), feed, 4), KVCache()
    other.update(*feed(20, 4))
    snapshot, foreign = cache.snapshot(1), other.snapshot(2)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    if change == "overwrite":
        cache.trim(1)
        cache.update(*feed(30))
    elif change == "restore":
        assert cache.restore(foreign, 4)
        assert see(cache.view()) == [0, 1, 22, 23]
    else:
        cache.free()
    size = 3 * (KEY_BYTES + VALUE_BYTES)
    assert (snapshot.nbytes, copied) == (size, [size])
    cache.free()
    cache.update(*feed(40, 9))
    assert see(snapshot.read()) == [1, 2, 3]
    assert copied == [size]
    snapshot.close()
    assert snapshot.nbytes == 0


def test_a_closed_snapshot_is_not_copied(feed: Feed) -> None:
    cache = fill(KVCache(), feed, 4)
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    snapshot.close()
    cache.free()
    assert copied == []


def test_free_closes_captures_that_nobody_took(feed: Feed) -> None:
    cache = KVCache()
    cache.prepare([2])
    fill(cache, feed, 3)
    cache.free()
    assert cache.take() == []
    assert len(cache.memory.named) == 0


def test_the_views_of_the_next_tokens_are_of_this_memory(feed: Feed, see: See) -> None:
    """They are made ahead: when the memory moves, or tokens are taken back, others are
    needed."""
    cache = KVCache(step=4)
    for number in range(130):
        cache.update(*feed(number))
    cache.trim(100)
    for number in range(30, 300):
        cache.update(*feed(number))
    assert see(cache.view()) == list(range(300))
    cache.free()
    cache.update(*feed(7))
    assert see(cache.view()) == [7]


def test_a_copy_of_a_cache_writes_to_its_own_memory(feed: Feed, see: See) -> None:
    cache = fill(KVCache(step=64), feed, 3)
    cache.update(*feed(3))
    other = copy.deepcopy(cache)
    other.update(*feed(50))
    cache.update(*feed(4))
    assert see(cache.view()) == [0, 1, 2, 3, 4]
    assert see(other.view()) == [0, 1, 2, 3, 50]


def test_steps_in_and_out_of_inference_mode(feed: Feed, see: See) -> None:
    cache = fill(KVCache(step=64), feed, 2)
    for number in range(2, 8):
        with torch.inference_mode(number % 2 == 0):
            cache.update(*feed(number))
    assert see(cache.view()) == list(range(8))
