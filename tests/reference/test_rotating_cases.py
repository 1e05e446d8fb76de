"""The sliding window, by cases that were worked out by hand."""

from __future__ import annotations

import pytest
from layer_book import fill, get_tags, see

from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot


def make(window: int, tokens: int, keep: int = 0) -> RotatingCache:
    return fill(RotatingCache(window, keep), tokens)


def take(cache: RotatingCache, begin: int = 0) -> Snapshot:
    snapshot = cache.snapshot(begin)
    assert snapshot is not None
    return snapshot


@pytest.mark.parametrize(
    ("window", "query", "seen"),
    [
        (1, 0, [10]),
        (1, 4, [14]),
        (2, 0, [10]),
        (2, 1, [10, 11]),
        (2, 2, [11, 12]),
        (3, 2, [10, 11, 12]),
        (3, 3, [11, 12, 13]),
        (3, 4, [12, 13, 14]),
        (4, 4, [11, 12, 13, 14]),
        (5, 4, [10, 11, 12, 13, 14]),
        (6, 4, [10, 11, 12, 13, 14]),
    ],
)
def test_a_query_sees_as_many_tokens_as_the_window_has(
    window: int, query: int, seen: list[int]
) -> None:
    assert see(make(window, 5), query) == seen


@pytest.mark.parametrize(
    ("window", "keep", "query", "seen"),
    [
        (3, 1, 2, [10, 11, 12]),
        (3, 1, 3, [10, 12, 13]),
        (3, 1, 5, [10, 14, 15]),
        (3, 2, 0, [10]),
        (3, 2, 1, [10, 11]),
        (3, 2, 2, [10, 11, 12]),
        (3, 2, 5, [10, 11, 15]),
        (4, 2, 5, [10, 11, 14, 15]),
        (2, 1, 1, [10, 11]),
        (2, 1, 2, [10, 12]),
    ],
)
def test_the_first_tokens_never_slide_out(
    window: int, keep: int, query: int, seen: list[int]
) -> None:
    assert see(make(window, 6, keep), query) == seen


@pytest.mark.parametrize(
    ("window", "keep", "tokens", "size", "held", "older"),
    [
        (3, 0, 0, 0, [], []),
        (3, 0, 2, 2, [10, 11], []),
        (3, 0, 3, 3, [10, 11, 12], []),
        (3, 0, 4, 3, [11, 12, 13], [10]),
        (3, 1, 5, 3, [10, 13, 14], [11, 12]),
    ],
)
def test_state_is_the_window_that_ends_now(
    window: int, keep: int, tokens: int, size: int, held: list[int], older: list[int]
) -> None:
    cache = make(window, tokens, keep)
    assert (cache.offset, cache.size()) == (tokens, size)
    assert get_tags(cache.state()) == held
    assert get_tags(cache.older()) == older


@pytest.mark.parametrize(
    ("tokens", "count", "trimmed", "offset"),
    [
        (2, 1, 1, 1),
        (3, 1, 1, 2),  # full, but nothing has slid out
        (3, 7, 3, 0),
        (4, 1, 0, 4),  # one token has
        (4, 0, 0, 4),
        (9, 9, 0, 9),
        (0, 2, 0, 0),
    ],
)
def test_trim_in_a_window_of_three(
    tokens: int, count: int, trimmed: int, offset: int
) -> None:
    cache = make(3, tokens)
    assert (cache.trim(count), cache.offset) == (trimmed, offset)


@pytest.mark.parametrize(
    ("tokens", "target", "restored"),
    [
        (3, 0, True),
        (3, 3, True),
        (3, 4, False),
        (3, -1, False),
        (4, 4, True),
        (4, 3, False),
        (4, 0, False),
    ],
)
def test_rewind_in_a_window_of_three(tokens: int, target: int, restored: bool) -> None:
    cache = make(3, tokens)
    assert cache.restore(None, target) is restored
    assert cache.offset == (target if restored else tokens)


def test_append_after_a_rewind() -> None:
    cache = make(3, 3)
    cache.trim(2)
    cache.update([30, 31, 32])
    assert [see(cache, query) for query in (1, 2, 3)] == [
        [10, 30],
        [10, 30, 31],
        [30, 31, 32],
    ]


@pytest.mark.parametrize(
    ("tokens", "begin", "label", "held"),
    [
        (2, 0, (0, 2), [10, 11]),
        (5, 0, (0, 5), [12, 13, 14]),
        (5, 4, (4, 5), [12, 13, 14]),
        (5, -3, (0, 5), [12, 13, 14]),
    ],
)
def test_snapshot_is_the_whole_window_whatever_its_label(
    tokens: int, begin: int, label: tuple[int, int], held: list[int]
) -> None:
    snapshot = take(make(3, tokens), begin)
    assert (snapshot.begin, snapshot.end) == label
    assert get_tags(snapshot.tokens) == held


def test_no_snapshot_without_anything_new() -> None:
    assert make(3, 5).snapshot(5) is None
    assert make(3, 0).snapshot(0) is None


@pytest.mark.parametrize(
    ("target", "restored"), [(5, True), (4, False), (0, False), (6, False), (-1, False)]
)
def test_restore_from_a_window_that_had_slid(target: int, restored: bool) -> None:
    snapshot = take(make(3, 5))
    cache = RotatingCache(3)
    cache.update([30, 31])
    assert cache.restore(snapshot, target) is restored
    assert get_tags(cache.state()) == ([12, 13, 14] if restored else [30, 31])


@pytest.mark.parametrize(("target", "held"), [(3, [10, 11, 12]), (2, [10, 11]), (0, [])])
def test_restore_from_a_window_that_had_not(target: int, held: list[int]) -> None:
    cache = make(3, 9)
    assert cache.restore(take(make(3, 3)), target) is True
    assert (cache.offset, get_tags(cache.state())) == (target, held)


def test_append_after_a_restore() -> None:
    snapshot = take(make(3, 5))
    cache = RotatingCache(3)
    cache.restore(snapshot, 5)
    cache.update([30, 31])
    assert see(cache, 5) == [13, 14, 30]
    assert see(cache, 6) == [14, 30, 31]


def test_the_first_tokens_come_along_in_a_snapshot() -> None:
    cache = RotatingCache(3, keep=1)
    cache.restore(take(make(3, 6, keep=1)), 6)
    cache.update([30])
    assert see(cache, 6) == [10, 15, 30]


def test_split_and_merge_leave_the_later_window_whole() -> None:
    cache = make(3, 5)
    first, second = take(make(3, 2)), take(cache, 2)
    assert cache.split(second, 3) == (None, second)
    assert cache.split(second, 99) == (None, second)
    assert cache.merge(first, second) is second
    assert cache.merge(None, second) is second
    assert cache.merge(first, None) is None


def test_free_and_clone() -> None:
    cache = make(2, 5)
    copy = cache.clone()
    cache.free()
    assert (cache.offset, cache.size(), cache.state()) == (0, 0, [])
    copy.update([30])
    assert see(copy, 5) == [14, 30]
