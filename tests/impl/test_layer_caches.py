"""Caches of one sequence on each framework: when they copy and move, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from frameworks import CONV, DELTA, HEADS, KEY_DIM, VALUE_DIM, Framework

TOKEN_BYTES = 4 * HEADS * (KEY_DIM + VALUE_DIM)
STATE_BYTES = 4 * (2 * 5 + 2 * 4 * 3)
HELD = {"kv": [1, 2, 3], "rotating": [0, 1, 2, 3], "state": [3]}
"""What a snapshot from position 1 on holds after the tokens 0, 1, 2 and 3."""

SIZES = {"kv": 3 * TOKEN_BYTES, "rotating": 4 * TOKEN_BYTES, "state": STATE_BYTES}

Change = Callable[[Framework, Any], object]
every_kind = pytest.mark.parametrize("kind", HELD)
with_tokens = pytest.mark.parametrize("kind", ["kv", "rotating"])


def fill(on: Framework, kind: str, count: int = 4, **options: Any) -> Any:
    cache = on.layer(kind, **options)
    on.append(cache, range(count))
    return cache


def watch(on: Framework, kind: str) -> tuple[Any, Any, list[int]]:
    """A cache with four tokens, a snapshot of it, and the copies that this makes."""
    cache, copied = fill(on, kind, **{} if kind == "state" else {"step": 8}), list[int]()
    snapshot = cache.snapshot(1)
    copy = cache.memory.copy

    def watched(begin: int, end: int) -> Any:
        arrays = copy(begin, end)
        copied.append(cache.memory.get_bytes(arrays))
        return arrays

    cache.memory.copy = watched
    return cache, snapshot, copied


def restore_other(on: Framework, cache: Any) -> None:
    other = type(cache)(*fitting(cache))
    on.append(other, [20, 21, 22])
    assert cache.restore(other.snapshot(0), 3)
    assert on.hold(cache.view())[-1] == 22


def fitting(cache: Any) -> tuple[Any, ...]:
    if hasattr(cache, "boundaries"):
        return (1, *CONV), (1, *DELTA)
    return () if cache.window is None else (cache.window,)


def overwrite(on: Framework, cache: Any) -> None:
    cache.trim(1)
    on.append(cache, [30])


def append(count: int) -> Change:
    return lambda on, cache: on.append(cache, range(4, 4 + count))


def free(on: Framework, cache: Any) -> None:
    cache.free()


# --- lazy snapshots ---------------------------------------------------------------------

HARMLESS: dict[str, tuple[str, Change]] = {
    "append": ("kv", append(2)),
    "grow": ("kv", append(100)),
    "trim": ("kv", lambda on, cache: cache.trim(2)),
    "capture": ("kv", lambda on, cache: (cache.prepare([6]), append(4)(on, cache))),
    "clone": ("kv", lambda on, cache: on.append(cache.clone(), [50])),
    "trim-a-ring": ("rotating", lambda on, cache: cache.trim(2)),
    "clone-a-ring": ("rotating", lambda on, cache: on.append(cache.clone(), [50])),
    "refused": ("state", lambda on, cache: cache.restore(None, 2)),
    "clone-a-state": ("state", lambda on, cache: on.append(cache.clone(), [50])),
}


@pytest.mark.parametrize(("kind", "change"), HARMLESS.values(), ids=HARMLESS)
def test_a_snapshot_owns_nothing_while_nothing_would_destroy_it(
    on: Framework, kind: str, change: Change
) -> None:
    cache, snapshot, copied = watch(on, kind)
    change(on, cache)
    assert on.hold(snapshot.read()) == HELD[kind]
    assert (snapshot.nbytes, copied) == (0, [])


DESTROYING: dict[str, tuple[str, Change]] = {
    "overwrite": ("kv", overwrite),
    "restore": ("kv", restore_other),
    "free": ("kv", free),
    "around-the-ring": ("rotating", append(5)),
    "overwrite-a-ring": ("rotating", overwrite),
    "grow-a-ring": ("rotating", append(12)),
    "restore-a-ring": ("rotating", restore_other),
    "free-a-ring": ("rotating", free),
    "write-a-state": ("state", append(1)),
    "restore-a-state": ("state", restore_other),
    "free-a-state": ("state", free),
}


@pytest.mark.parametrize(("kind", "change"), DESTROYING.values(), ids=DESTROYING)
def test_a_snapshot_copies_once_before_it_would_change(
    on: Framework, kind: str, change: Change
) -> None:
    cache, snapshot, copied = watch(on, kind)
    change(on, cache)
    assert (snapshot.nbytes, copied) == (SIZES[kind], [SIZES[kind]])
    cache.free()
    on.append(cache, range(40, 49))
    assert on.hold(snapshot.read()) == HELD[kind]
    assert copied == [SIZES[kind]]
    snapshot.close()
    assert snapshot.nbytes == 0


@every_kind
def test_what_was_closed_is_not_copied_read_or_closed_again(
    on: Framework, kind: str
) -> None:
    cache, snapshot, copied = watch(on, kind)
    cache.close(snapshot)
    for refused, words in (
        (lambda: cache.close(snapshot), r"snapshot \[1, 4\) has been closed already"),
        (snapshot.read, r"snapshot \[1, 4\) cannot be read"),
    ):
        with pytest.raises(ValueError, match=words):
            refused()
    on.append(cache, [4])
    now = cache.offset, on.hold(cache.view())
    with pytest.raises(ValueError, match="has been closed"):
        cache.restore(snapshot, 4)
    assert (cache.offset, on.hold(cache.view())) == now
    cache.free()
    assert copied == []


def refuses_to_read(*snapshots: Any) -> bool:
    for snapshot in snapshots:
        with pytest.raises(ValueError, match="closed"):
            snapshot.read()
    return True


def test_split_and_merge_consume_their_inputs(on: Framework) -> None:
    cache = fill(on, "kv", 5)
    whole = cache.snapshot(1)
    parts = cache.split(whole, 3)
    assert refuses_to_read(whole)
    merged = cache.merge(*parts)
    assert (on.hold(merged.read()), merged.nbytes) == ([1, 2, 3, 4], 0)
    assert refuses_to_read(*parts)
    assert cache.merge(None, merged) is None
    alone = cache.snapshot(0)
    assert cache.merge(alone, None) is None
    assert refuses_to_read(merged, alone)


def test_split_of_what_was_copied_gives_parts_of_their_own(on: Framework) -> None:
    cache = fill(on, "kv", 5)
    whole = cache.snapshot(0)
    cache.free()
    left, right = cache.split(whole, 2)
    assert (on.hold(left.read()), on.hold(right.read())) == ([0, 1], [2, 3, 4])
    assert (left.nbytes, right.nbytes) == (2 * TOKEN_BYTES, 3 * TOKEN_BYTES)
    if on.name == "torch":
        assert left.read()[0].untyped_storage().nbytes() == 2 * HEADS * KEY_DIM * 4


@pytest.mark.parametrize("kind", ["rotating", "state"])
def test_merge_of_what_is_whole_closes_the_parent(on: Framework, kind: str) -> None:
    cache = fill(on, kind, 3)
    parent, child = cache.snapshot(0), cache.snapshot(2)
    assert cache.merge(parent, child) is child
    assert refuses_to_read(parent)
    assert cache.merge(child, None) is None
    assert refuses_to_read(child)


def test_free_closes_captures_that_nobody_took(on: Framework) -> None:
    cache = on.layer("kv")
    cache.prepare([2])
    on.append(cache, range(3))
    cache.free()
    assert cache.take() == []
    assert len(cache.memory.named) == 0


# --- memory -----------------------------------------------------------------------------


def get_places(on: Framework, cache: Any) -> list[int]:
    """The capacity, and on torch where the memory lies."""
    buffers = cache.memory.buffers if on.name == "torch" else []
    capacity = cache.memory.columns.capacity
    return [capacity, *(buffer.tensor.data_ptr() for buffer in buffers)]


def test_a_step_moves_nothing_until_the_memory_is_full(on: Framework) -> None:
    cache = fill(on, "kv", 3, step=8)
    places = get_places(on, cache)
    for number in range(3, 8):
        pair = cache.update(*on.feed([number]))
        assert get_places(on, cache) == places
        assert on.name == "mlx" or [each.data_ptr() for each in pair] == places[1:]
    on.append(cache, [8])
    assert get_places(on, cache) != places
    assert on.hold(cache.view()) == list(range(9))


def test_a_long_update_takes_no_more_than_it_needs(on: Framework) -> None:
    assert fill(on, "kv", 100, step=16).memory.columns.capacity == 112


# --- mistakes ---------------------------------------------------------------------------


@with_tokens
def test_a_snapshot_of_another_form_is_refused(on: Framework, kind: str) -> None:
    cache, other = fill(on, kind, 3), on.layer(kind)
    other.update(*on.feed(range(4), heads=3))
    with pytest.raises(ValueError, match="heads"):
        cache.restore(other.snapshot(1), 4)
    assert (cache.offset, on.hold(cache.view())) == (3, [0, 1, 2])


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_a_token(on: Framework, window: int) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        on.layer("rotating", window=window)


def test_a_state_is_written_up_to_each_capture(on: Framework) -> None:
    cache = fill(on, "state")
    cache.prepare([6, 9])
    assert [cache.boundaries(length) for length in (6, 5, 2)] == [[2, 3, 1], [2, 3], [2]]
    with pytest.raises(ValueError, match="a capture is prepared at offset 6"):
        cache.write(*on.states(8), 3)
    assert (cache.offset, on.hold(cache.read())) == (4, [3])


def test_a_window_grows_geometrically_and_no_further_than_it_must(on: Framework) -> None:
    cache, places = on.layer("rotating", window=256, step=1), set()
    token = on.feed([0])
    for _ in range(600):
        cache.update(*token)
        places.add(cache.memory.columns.capacity)
    assert len(places) <= 9
    assert cache.memory.columns.capacity <= 512


@pytest.mark.parametrize("step", [1, 3, 8, 256])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_the_ring_of_a_full_window_stays_where_it_is(
    on: Framework, window: int, step: int
) -> None:
    cache = on.layer("rotating", window=window, step=step)
    for number in range(window):
        on.append(cache, [number])
    assert cache.memory.columns.room == window
    places = get_places(on, cache)
    for number in range(window, 12 * window):
        pair = cache.update(*on.feed([number]))
        assert sorted(on.hold(pair)) == list(range(number - window + 1, number + 1))
        assert on.hold(cache.view()) == sorted(on.hold(pair))
        assert get_places(on, cache) == places


def test_a_restore_makes_no_capture_of_a_full_cache(on: Framework) -> None:
    """Only a write that reaches the offset does."""
    cache = fill(on, "kv", 2)
    snapshot = cache.snapshot(0)
    cache.trim(2)
    cache.prepare([1])
    assert cache.restore(snapshot, 1)
    on.append(cache, [9])
    assert cache.take() == [None]
