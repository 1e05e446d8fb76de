"""The full cache, by cases that were worked out by hand."""

from __future__ import annotations

import pytest
from layer_book import fill, get_tags, hold, see

from lockstep.reference.kv import KVCache
from lockstep.reference.token import Token


def make(tokens: int, chunk: int | None = None) -> KVCache:
    return fill(KVCache(chunk), tokens)


@pytest.mark.parametrize(
    ("tokens", "query", "seen"),
    [
        (1, 0, [10]),
        (3, 0, [10]),
        (3, 1, [10, 11]),
        (3, 2, [10, 11, 12]),
        (0, 0, []),
    ],
)
def test_a_query_sees_all_up_to_itself(tokens: int, query: int, seen: list[int]) -> None:
    assert see(make(tokens), query) == seen


@pytest.mark.parametrize(
    ("chunk", "query", "seen"),
    [
        (1, 5, [15]),
        (2, 4, [14]),
        (2, 5, [14, 15]),
        (3, 2, [10, 11, 12]),
        (3, 3, [13]),
        (3, 8, [16, 17, 18]),
        (4, 9, [18, 19]),
        (10, 9, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
        (11, 3, [10, 11, 12, 13]),
    ],
)
def test_a_query_sees_its_own_chunk(chunk: int, query: int, seen: list[int]) -> None:
    assert see(make(10, chunk), query) == seen


@pytest.mark.parametrize(
    ("tokens", "count", "trimmed", "left"),
    [
        (0, 3, 0, []),
        (5, 0, 0, [10, 11, 12, 13, 14]),
        (5, 2, 2, [10, 11, 12]),
        (5, 5, 5, []),
        (5, 9, 5, []),
    ],
)
def test_trim(tokens: int, count: int, trimmed: int, left: list[int]) -> None:
    cache = make(tokens)
    assert cache.trim(count) == trimmed
    assert cache.offset == cache.size() == len(left)
    assert get_tags(cache.state()) == left


def test_append_after_trim_takes_the_positions_that_became_free() -> None:
    cache = make(5)
    cache.trim(2)
    cache.update([30, 31, 32])
    assert cache.state()[2:] == [Token(12, 2), Token(30, 3), Token(31, 4), Token(32, 5)]
    assert see(cache, 4) == [10, 11, 12, 30, 31]


def test_chunks_count_from_the_start_of_the_sequence_after_a_trim() -> None:
    cache = make(6, chunk=4)
    cache.trim(3)
    cache.update([30, 31])
    assert see(cache, 3) == [10, 11, 12, 30]
    assert see(cache, 4) == [31]


@pytest.mark.parametrize(
    ("begin", "held"),
    [
        (0, (0, 5, [10, 11, 12, 13, 14])),
        (3, (3, 5, [13, 14])),
        (4, (4, 5, [14])),
        (5, None),
        (7, None),
        (-2, (0, 5, [10, 11, 12, 13, 14])),
    ],
)
def test_snapshot(begin: int, held: tuple[int, int, list[int]] | None) -> None:
    assert hold(make(5).snapshot(begin)) == held


def test_snapshot_of_nothing() -> None:
    assert KVCache().snapshot(0) is None
    assert KVCache().snapshot(-1) is None


@pytest.mark.parametrize(
    ("target", "restored", "left"),
    [
        (0, True, []),
        (2, True, [10, 11]),
        (3, True, [10, 11, 12]),
        (4, False, [10, 11, 12]),
        (-1, False, [10, 11, 12]),
    ],
)
def test_rewind(target: int, restored: bool, left: list[int]) -> None:
    cache = make(3)
    assert cache.restore(None, target) is restored
    assert get_tags(cache.state()) == left


@pytest.mark.parametrize(
    ("target", "restored", "left"),
    [
        (5, True, [10, 11, 30, 12, 13]),  # position 2 is live, 3 and 4 are not
        (4, True, [10, 11, 30, 12]),
        (3, True, [10, 11, 30]),
        (1, True, [10]),
        (0, True, []),
        (6, False, [10, 11, 30, 31]),
        (-1, False, [10, 11, 30, 31]),
    ],
)
def test_restore_keeps_what_is_live_below_the_snapshot(
    target: int, restored: bool, left: list[int]
) -> None:
    source = KVCache()
    source.update([7, 8, 9, 12, 13])
    snapshot = source.snapshot(3)
    cache = make(2)
    cache.update([30, 31])
    assert cache.restore(snapshot, target) is restored
    assert get_tags(cache.state()) == left
    assert cache.offset == len(left)


def test_restore_replaces_what_lies_behind_the_snapshot() -> None:
    snapshot = make(4).snapshot(2)
    cache = make(2)
    cache.update([30, 31, 32, 33])
    assert cache.restore(snapshot, 4) is True
    assert get_tags(cache.state()) == [10, 11, 12, 13]


def test_restore_needs_the_tokens_below_the_snapshot() -> None:
    snapshot = make(5).snapshot(3)
    assert make(2).restore(snapshot, 5) is False
    assert make(2).restore(snapshot, 1) is False
    assert make(3).restore(snapshot, 5) is True


def test_a_snapshot_outlives_what_happens_to_its_cache() -> None:
    cache = make(4)
    snapshot = cache.snapshot(1)
    cache.trim(3)
    cache.update([30, 31, 32, 33])
    assert hold(snapshot) == (1, 4, [11, 12, 13])
    cache.free()
    assert (cache.offset, cache.state()) == (0, [])
    assert hold(snapshot) == (1, 4, [11, 12, 13])
    assert cache.restore(snapshot, 4) is False
    cache.update([40])
    assert cache.restore(snapshot, 4) is True
    cache.update([41])
    assert see(cache, 4) == [40, 11, 12, 13, 41]


@pytest.mark.parametrize(
    ("at", "parent", "child"),
    [
        (0, None, (1, 4, [11, 12, 13])),
        (1, None, (1, 4, [11, 12, 13])),
        (2, (1, 2, [11]), (2, 4, [12, 13])),
        (3, (1, 3, [11, 12]), (3, 4, [13])),
        (4, (1, 4, [11, 12, 13]), None),
        (9, (1, 4, [11, 12, 13]), None),
    ],
)
def test_split(at: int, parent: object, child: object) -> None:
    cache = make(4)
    snapshot = cache.snapshot(1)
    assert snapshot is not None
    left, right = cache.split(snapshot, at)
    assert (hold(left), hold(right)) == (parent, child)


def test_merge_joins_neighbours() -> None:
    cache = make(5)
    whole = cache.snapshot(1)
    assert whole is not None
    merged = cache.merge(*cache.split(whole, 3))
    assert hold(merged) == (1, 5, [11, 12, 13, 14])


def test_merge_joins_ranges_of_different_histories() -> None:
    left, right = make(2).snapshot(0), KVCache()
    right.update([30, 31, 32, 33])
    merged = KVCache().merge(left, right.snapshot(2))
    assert hold(merged) == (0, 4, [10, 11, 32, 33])


def test_merge_with_nothing_is_nothing() -> None:
    cache = make(2)
    assert cache.merge(None, None) is None
    assert cache.merge(cache.snapshot(0), None) is None
    assert cache.merge(None, cache.snapshot(0)) is None


@pytest.mark.parametrize(("parent", "child"), [(3, 1), (2, 3), (4, 0)])
def test_merge_refuses_ranges_with_a_gap_or_an_overlap(parent: int, child: int) -> None:
    """[0, parent) and [child, 4)."""
    cache = make(4)
    with pytest.raises(ValueError, match="not adjacent"):
        cache.merge(make(parent).snapshot(0), cache.snapshot(child))


def test_clone_has_the_same_tokens_and_the_same_chunk() -> None:
    cache = make(5, chunk=2)
    copy = cache.clone()
    copy.update([30])
    assert see(copy, 5) == [14, 30]
    assert cache.offset == 5


def test_free_is_a_fresh_cache() -> None:
    cache = make(3)
    cache.free()
    assert (cache.offset, cache.size(), cache.state()) == (0, 0, [])
    cache.update([30])
    assert cache.state() == [Token(30, 0)]
