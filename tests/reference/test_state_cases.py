"""The recurrent state and scheduled captures, by cases that were worked out by hand."""

from __future__ import annotations

import pytest
from layer_book import Held, fill, get_tags, hold, see

from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.state import StateCache


def make(tokens: int) -> StateCache:
    return fill(StateCache(), tokens)


def test_the_state_has_read_every_token_up_to_the_query() -> None:
    cache = make(4)
    assert see(cache, 2) == [10, 11, 12]
    assert get_tags(cache.state()) == [10, 11, 12, 13]


@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_trim_never_takes_anything_back(count: int) -> None:
    cache = make(4)
    assert (cache.trim(count), cache.offset) == (0, 4)


@pytest.mark.parametrize("cache", [KVCache(), RotatingCache(3), StateCache()])
def test_no_cache_trims_less_than_nothing(
    cache: KVCache | RotatingCache | StateCache,
) -> None:
    fill(cache, 2)
    with pytest.raises(ValueError, match="count -1 is negative"):
        cache.trim(-1)
    assert cache.offset == 2


@pytest.mark.parametrize(
    ("target", "restored"), [(4, True), (3, False), (0, False), (5, False), (-1, False)]
)
def test_only_the_live_offset_can_be_reached_without_a_snapshot(
    target: int, restored: bool
) -> None:
    cache = make(4)
    assert cache.restore(None, target) is restored
    assert cache.offset == 4


@pytest.mark.parametrize(
    ("target", "restored"), [(3, True), (2, False), (4, False), (0, False)]
)
def test_only_the_end_of_a_snapshot_can_be_reached(target: int, restored: bool) -> None:
    snapshot = make(3).snapshot(1)
    assert hold(snapshot) == (1, 3, [10, 11, 12])
    cache = StateCache()
    cache.update([30, 31, 32, 33])
    assert cache.restore(snapshot, target) is restored
    held = [10, 11, 12] if restored else [30, 31, 32, 33]
    assert get_tags(cache.state()) == held


def test_split_merge_free_and_clone() -> None:
    cache = make(3)
    first, second = make(2).snapshot(0), cache.snapshot(2)
    assert first is not None
    assert second is not None
    assert cache.split(second, 2) == (None, second)
    assert cache.merge(first, second) is second
    assert cache.merge(first, None) is None
    copy = cache.clone()
    copy.update([30])
    assert (cache.offset, copy.offset) == (3, 4)
    cache.free()
    assert (cache.offset, copy.offset, cache.snapshot(0)) == (0, 4, None)


@pytest.mark.parametrize(
    ("before", "offsets", "lengths", "taken"),
    [
        (0, [2], [5], [(0, 2, [0, 1])]),
        (0, [2, 4], [5], [(0, 2, [0, 1]), (2, 4, [2, 3])]),
        (1, [2, 4], [1, 1, 1, 1], [(1, 2, [1]), (2, 4, [2, 3])]),
        (1, [1, 3], [4], [None, (1, 3, [1, 2])]),
        (0, [3, 9], [4], [(0, 3, [0, 1, 2]), None]),
        (2, [], [3], []),
    ],
)
def test_captures_of_a_full_cache(
    before: int, offsets: list[int], lengths: list[int], taken: list[Held | None]
) -> None:
    cache, tag = KVCache(), before
    cache.update(range(before))
    cache.prepare(offsets)
    for length in lengths:
        cache.update(range(tag, tag + length))
        tag += length
    assert [hold(snapshot) for snapshot in cache.take()] == taken
    assert cache.take() == []


def test_captures_of_a_window() -> None:
    cache = RotatingCache(2)
    cache.prepare([1, 3])
    cache.update(range(5))
    assert [hold(snapshot) for snapshot in cache.take()] == [(0, 1, [0]), (1, 3, [1, 2])]


def test_captures_of_a_state() -> None:
    cache = StateCache()
    cache.prepare([2, 3])
    cache.update(range(5))
    captures = [hold(snapshot) for snapshot in cache.take()]
    assert captures == [(0, 2, [0, 1]), (2, 3, [0, 1, 2])]


def test_a_capture_outlives_a_rewind() -> None:
    cache = KVCache()
    cache.prepare([2])
    cache.update([0, 1, 2])
    cache.trim(3)
    cache.update([3, 4, 5])
    assert [hold(snapshot) for snapshot in cache.take()] == [(0, 2, [0, 1])]


def test_free_and_clone_leave_the_schedule_behind() -> None:
    cache = KVCache()
    cache.prepare([2])
    assert cache.clone().take() == []
    cache.free()
    assert cache.take() == []


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([4, 3], "do not ascend"),
        ([4, 4], "do not ascend"),
        ([2, 5], "offset 2 is behind the cache, which stands at 3"),
    ],
)
def test_prepare_refuses(offsets: list[int], why: str) -> None:
    cache = make(3)
    with pytest.raises(ValueError, match=why):
        cache.prepare(offsets)
    assert cache.take() == []


def test_prepare_refuses_before_the_earlier_captures_were_taken() -> None:
    cache = make(1)
    cache.prepare([2])
    with pytest.raises(ValueError, match="not taken yet"):
        cache.prepare([3])
    cache.update([11, 12])
    assert [hold(snapshot) for snapshot in cache.take()] == [(1, 2, [10, 11])]
    cache.prepare([3])
