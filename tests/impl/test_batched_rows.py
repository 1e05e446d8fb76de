"""Rows of a batch in their slots: what moves, and how much memory there is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from batches import BOTH, TOKEN_BYTES, append, decode, fill
from frameworks import Framework

from lockstep.impl.shared.rows import SPARE, choose_first, cut_ring, order_moves


def test_no_move_overwrites_what_a_later_one_reads() -> None:
    for seed in range(500):
        draw, slots = random.Random(seed), list(range(7))
        content = {slot: f"row {slot}" for slot in slots}
        targets = draw.sample(slots, draw.randint(0, 7))
        sources = {target: draw.choice(slots) for target in targets}
        moves = {target: source for target, source in sources.items() if target != source}
        right = {**content, **{to: content[source] for to, source in moves.items()}}
        ordered = list(order_moves(moves))
        for source, target in ordered:
            content[target] = content[source]
        content.pop(SPARE, None)
        assert content == right
        cycles = sum(target == SPARE for _, target in ordered)
        assert len(ordered) == len(moves) + cycles and 2 * cycles <= len(moves)


@pytest.mark.parametrize(
    ("wanted", "sizes", "slots", "first"),
    [
        ([1, 2, 3], [1, 1, 1], 4, 1),  # the first has left
        ([0, 1, 3], [1, 1, 1], 4, 0),
        ([0, 2, 3], [1, 1, 1], 4, 1),
        ([0, 2, 3], [5, 1, 1], 4, 0),
        ([3, 2], [1, 2], 4, 1),
        ([2, None], [1, 1], 3, 0),  # there is no slot behind
        ([1, None], [1, 1], 3, 1),
        ([None], [1], 3, 0),
        ([0, 0, 1], [1, 1, 1], 2, None),
    ],
)
def test_rows_stay_where_most_tokens_are(
    wanted: Sequence[int | None], sizes: Sequence[int], slots: int, first: int | None
) -> None:
    assert choose_first(wanted, sizes, slots) == first


def test_tokens_are_cut_where_a_ring_wraps() -> None:
    assert list(cut_ring(3, 2, 8)) == [(3, 0, 2)]
    assert list(cut_ring(6, 4, 8)) == [(6, 0, 2), (0, 2, 4)]
    assert list(cut_ring(6, 9, 4)) == [(3, 5, 6), (0, 6, 9)]
    assert list(cut_ring(0, 4, 4)) == [(0, 0, 4)]
    assert list(cut_ring(5, 0, 4)) == []


class Watched:
    """A batch whose pool counts the columns of single rows that are written."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.columns, self.built = batch, 0, 0
        self.watch(batch.pool)

    def watch(self, pool: Any) -> None:
        write, rebuild = pool.write_slots, pool.rebuild

        def write_slots(slot: int, column: int, arrays: Any) -> None:
            if arrays[0].shape[0] == 1:
                self.columns += arrays[0].shape[2]
            write(slot, column, arrays)

        def build(*arguments: Any) -> None:
            self.built += 1
            rebuild(*arguments)

        pool.write_slots, pool.rebuild = write_slots, build

    def take(self) -> tuple[int, int]:
        """Returns both counts, and begins again."""
        counts = self.columns, self.built
        self.columns = self.built = 0
        return counts


@BOTH
@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        ([1, 2, 3, 4, 5], []),  # the first leaves
        ([0, 1, 2, 3, 4], []),
        ([2, 3], []),
        ([0, 2, 3, 4, 5], [0]),  # the smaller side of the gap
        ([0, 1, 2, 3, 5], [5]),
        ([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_rows_leave_without_moving_the_others(
    on: Framework, window: int | None, rows: list[int], moved: list[int]
) -> None:
    lengths = [4, 4, 3, 4, 4, 4]
    batch = fill(on, lengths, window)
    watched = Watched(batch)
    batch.filter(rows)
    assert watched.take() == (sum(lengths[row] for row in moved), 0)


@BOTH
@pytest.mark.parametrize("step", [4, 8])
def test_a_row_that_joins_moves_alone(
    on: Framework, window: int | None, step: int
) -> None:
    """Once there is room: from the second time on it is made for half as many rows again.
    Rows that stay in their columns get there as one block."""
    batch = fill(on, [4] * 6, window, step=step)
    rooms = {batch.pool.room, 4 if window else 8}
    watched, copied = Watched(batch), []
    for _ in range(8):
        batch.extend(fill(on, [3], window))
        copied.append(watched.take())
    alone = 0 if len(rooms) == 1 else 6 * 4
    free = [(3, 0)] * 4
    assert copied == [(alone + 3, 1), (3, 1), *free, (3, 1), (3, 0)]


@BOTH
def test_rows_that_come_and_go_move_a_few_times_each(
    on: Framework, window: int | None
) -> None:
    """The first leaves, and another joins behind the last."""
    batch = fill(on, [4] * 8, window)
    watched, turns = Watched(batch), 60
    for _ in range(turns):
        batch.filter([*range(1, 8)])
        batch.extend(fill(on, [4], window))
    columns, built = watched.take()
    assert columns <= turns * 4 * 4
    assert built <= 2
    assert batch.pool.slots <= 12


@BOTH
def test_a_step_moves_nothing_until_a_block_is_full(
    on: Framework, window: int | None
) -> None:
    batch = fill(on, [2, 1, 3], window, step=8)
    watched = Watched(batch)
    decode(on, batch, 4)
    assert watched.take() == (0, 0)
    if on.name == "torch":
        places = [array.data_ptr() for array in batch.pool.arrays]
        assert [array.data_ptr() for array in append(on, batch)] == places


# --- where rows stand -------------------------------------------------------------------


def pad_left(on: Framework, window: int | None) -> Any:
    batch = on.batch(3, window, step=4)
    batch.pad_left([4, 0, 2])
    append(on, batch, 5)
    return batch


def join(*lengths: int) -> Any:
    def make(on: Framework, window: int | None) -> Any:
        batch = fill(on, [4, 2], window)
        batch.extend(fill(on, lengths, window, step=1))
        return batch

    return make


def stack(on: Framework, window: int | None) -> Any:
    batch = fill(on, [4, 2, 7], window)
    return on.stack([batch.extract(row) for row in (2, 1, 0)])


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda on, window: fill(on, [3, 3, 3], window),
        lambda on, window: fill(on, [1, 3, 2], window),
        lambda on, window: fill(on, [6, 1, 9], window),
        *(pad_left, stack, join(4, 1), join(4, 4), join(1, 6), join(3, 9)),
    ],
)
def test_rows_end_together(on: Framework, window: int | None, make: Any) -> None:
    """So steps need no scatter."""
    batch = make(on, window)
    batch.pool.scatter = None
    decode(on, batch, 9)


@BOTH
def test_the_end_of_padding_moves_short_rows_only(
    on: Framework, window: int | None
) -> None:
    batch = on.batch(3, window, step=4)
    batch.pad_right([2, 9, 9])
    for length in (4, 4, 1):
        append(on, batch, length)
    watched = Watched(batch)
    batch.finalize()
    assert watched.take()[0] in (0, 2)  # none if the last update has moved all


def test_rows_that_do_not_end_together_are_scattered(on: Framework) -> None:
    batch = fill(on, [4, 4, 4], None, step=16)
    batch.rollback([0, 2, 1])
    written, scatter = [], batch.pool.scatter
    batch.pool.scatter = lambda *given: (written.append(1), scatter(*given))
    decode(on, batch, 3)
    assert len(written) == 3


@BOTH
def test_columns_before_all_rows_are_not_returned(
    on: Framework, window: int | None
) -> None:
    """Common padding shrinks when the longest row leaves."""
    batch = fill(on, [3, 1, 1], window)
    batch.filter([1, 2])
    assert append(on, batch)[0].shape[2] == 2


@pytest.mark.parametrize("longest", [40, 100])
def test_room_before_all_rows_is_used(on: Framework, longest: int) -> None:
    """A pool grows by what its rows need, not by where they stand."""
    batch = fill(on, [longest, 1, 2], None)
    batch.filter([1, 2])
    room = batch.pool.room
    assert room <= 8 or longest < 100, "a long row takes its room along"
    decode(on, batch, room)
    assert batch.pool.room <= 2 * room


@BOTH
def test_memory_is_what_rows_need_and_a_half(on: Framework, window: int | None) -> None:
    batch = fill(on, [4] * 8, window)
    room = 4 if window else 8  # a full cache has room for the next token
    assert batch.held() == {"bytes": 8 * 4 * TOKEN_BYTES}
    for rows in (9, 10 + 5):
        batch.extend(fill(on, [2], window))
        assert batch.held() == {"bytes": rows * room * TOKEN_BYTES}
    if window is None:
        decode(on, batch, room)  # more columns leave the room for more rows
        assert (batch.pool.slots, batch.pool.room > room) == (10 + 5, True)
    batch.filter([8])
    batch.free()
    assert batch.held() == {"bytes": 0}


@BOTH
def test_what_is_copied_has_room_for_the_next_token(
    on: Framework, window: int | None
) -> None:
    """Or the next step would copy it all again."""
    batch, room = fill(on, [4, 4], window), 4 if window else 8
    single = batch.extract(0)
    assert single.memory.columns.capacity == room  # or goes around
    assert on.stack([single]).pool.room == room
    fresh = on.batch(2, window, step=4)
    fresh.load(batch.save())
    assert fresh.pool.room == room


def test_what_joined_or_was_stacked_is_given_up(on: Framework) -> None:
    batch, other = (fill(on, [3], None) for _ in range(2))
    batch.extend(other)
    assert (other.offsets, other.held()) == ((0,), {"bytes": 0})
    cache = batch.extract(1)
    snapshot = cache.snapshot(0)
    assert on.stack([cache]).offsets == (3,)
    assert cache.offset == 0 and cache.view() is None
    assert on.hold(snapshot.read()) == [0, 1, 2]  # it outlives that


def test_a_long_row_takes_its_room_along(on: Framework) -> None:
    batch = fill(on, [100, 3, 2], None)
    batch.filter([1, 2])
    assert batch.held()["bytes"] <= 2 * 8 * TOKEN_BYTES
