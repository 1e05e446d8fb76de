"""The sliding window on torch: the ring stays where it is, and snapshots stay lazy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.impl.torch.rotating import RotatingCache

Feed = Callable[..., tuple[Any, Any]]
See = Callable[[Any], list[int]]

TOKEN_BYTES = 2 * (4 + 3) * 4  # heads, key_dim + value_dim, float32


def fill(cache: RotatingCache, feed: Feed, count: int) -> RotatingCache:
    for number in range(cache.offset, cache.offset + count):
        cache.update(*feed(number))
    return cache


def get_places(cache: RotatingCache) -> tuple[int, int]:
    assert cache.memory.buffers is not None
    keys, values = cache.memory.buffers
    return keys.tensor.data_ptr(), values.tensor.data_ptr()


@pytest.mark.parametrize("step", [1, 3, 8, 256])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_the_ring_of_a_full_window_stays_where_it_is(
    feed: Feed, see: See, window: int, step: int
) -> None:
    cache = fill(RotatingCache(window, step), feed, window)
    places, capacity = get_places(cache), cache.memory.capacity
    for number in range(window, 6 * window + 3):
        pair = cache.update(*feed(number))
        assert see(pair) == list(range(number - window + 1, number + 1))
        assert get_places(cache) == places
    assert cache.memory.capacity == capacity <= max(2 * window, step)


def test_the_ring_stays_after_a_chunk_too(feed: Feed, see: See) -> None:
    cache = fill(RotatingCache(4, step=2), feed, 7)
    assert see(cache.update(*feed(7, 10))) == list(range(4, 17))
    places = get_places(cache)
    for number in range(17, 60):
        assert see(cache.update(*feed(number))) == list(range(number - 3, number + 1))
        assert get_places(cache) == places


def test_a_first_chunk_longer_than_the_window_comes_back_whole(
    feed: Feed, see: See
) -> None:
    cache = RotatingCache(3, step=2)
    assert see(cache.update(*feed(0, 8))) == list(range(8))
    assert see(cache.view()) == [5, 6, 7]


def test_a_window_grows_geometrically(feed: Feed) -> None:
    cache, places = RotatingCache(4096, step=1), set()
    token = feed(0)
    for _ in range(5000):
        cache.update(*token)
        places.add(cache.memory.capacity)
    assert len(places) <= 13


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_a_token(window: int) -> None:
    with pytest.raises(ValueError, match="holds no token"):
        RotatingCache(window)


@pytest.mark.parametrize("tokens", [2, 9])
def test_trim_refuses_less_than_nothing(feed: Feed, tokens: int) -> None:
    cache = fill(RotatingCache(4), feed, tokens)
    with pytest.raises(ValueError, match="count -1 is negative"):
        cache.trim(-1)
    assert cache.offset == tokens


def test_a_snapshot_is_copied_when_the_ring_comes_around(feed: Feed, see: See) -> None:
    """Window 4 in a ring of 8: the tokens 2-5 stand in the slots 2-5, which the tokens
    10-13 are the next to take."""
    cache = fill(RotatingCache(4, step=8), feed, 6)
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    fill(cache, feed, 4)
    assert (snapshot.nbytes, copied) == (0, [])
    fill(cache, feed, 1)
    assert (snapshot.nbytes, copied) == (4 * TOKEN_BYTES, [4 * TOKEN_BYTES])
    fill(cache, feed, 20)
    assert see(snapshot.read()) == [2, 3, 4, 5]
    assert len(copied) == 1
    assert cache.restore(snapshot, 6)
    assert see(cache.update(*feed(90))) == [3, 4, 5, 90]


@pytest.mark.parametrize("change", ["grow", "restore", "free", "rewind"])
def test_a_snapshot_outlives_what_destroys_its_tokens(
    feed: Feed, see: See, change: str
) -> None:
    cache, other = fill(RotatingCache(4, step=4), feed, 4), RotatingCache(4)
    other.update(*feed(20, 3))
    snapshot, foreign = cache.snapshot(2), other.snapshot(0)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    if change == "grow":
        cache.update(*feed(4, 9))
    elif change == "restore":
        assert cache.restore(foreign, 3)
        assert see(cache.view()) == [20, 21, 22]
    elif change == "free":
        cache.free()
    else:
        assert cache.trim(2) == 2
        cache.update(*feed(30))
    assert see(snapshot.read()) == [0, 1, 2, 3]
    assert copied == [4 * TOKEN_BYTES]


def test_a_restore_of_what_was_closed_changes_nothing(feed: Feed, see: See) -> None:
    cache = fill(RotatingCache(4), feed, 6)
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    cache.close(snapshot)
    with pytest.raises(ValueError, match="has been closed"):
        cache.restore(snapshot, 6)
    with pytest.raises(ValueError, match="closed before"):
        cache.close(snapshot)
    assert (cache.offset, see(cache.view())) == (6, [2, 3, 4, 5])


def test_merge_closes_the_parent_and_gives_the_child(feed: Feed, see: See) -> None:
    cache = fill(RotatingCache(2), feed, 3)
    parent, child = cache.snapshot(0), cache.snapshot(2)
    assert parent is not None
    assert child is not None
    assert cache.merge(parent, child) is child
    assert see(child.read()) == [1, 2]
    with pytest.raises(ValueError, match="closed"):
        parent.read()
    assert cache.merge(child, None) is None
    with pytest.raises(ValueError, match="closed"):
        child.read()


def test_captures_inside_one_update(feed: Feed, see: See) -> None:
    cache = RotatingCache(2, step=1)
    cache.prepare([1, 4, 5, 99])
    cache.update(*feed(0, 6))
    captures = [capture and see(capture.read()) for capture in cache.take()]
    assert captures == [[0], [2, 3], [3, 4], None]
