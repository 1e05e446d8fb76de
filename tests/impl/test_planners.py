"""The planners of columns, beside a list that says which position each column holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.impl.shared.linear import Linear, compute_capacity
from lockstep.impl.shared.ring import Ring


class Columns:
    """The columns of a planner, each with the position that it holds; -1 for none."""

    def __init__(self, planner: Any) -> None:
        self.planner, self.held = planner, list[int]()

    def update(self, first: int, begin: int, end: int) -> list[int]:
        """Carries out a plan; returns the positions in the returned columns."""
        planner, copied, written, returned = self.planner.plan(first, begin, end)
        if copied is not None:
            old = [self.held[column] for column in list_columns(copied)]
            self.held = old + [-1] * (planner.room - len(old))
        self.planner = planner
        for token, column, stop in written:
            self.held[column:stop] = range(begin + token, begin + token + stop - column)
        assert len(self.held) == planner.room
        return [self.held[column] for column in list_columns(returned)]

    def read(self, begin: int, end: int) -> list[int]:
        runs = self.planner.find(begin, end)
        return [self.held[column] for column in list_columns(runs)]


def list_columns(runs: Any) -> list[int]:
    return [column for _, begin, end in runs for column in range(begin, end)]


LENGTHS = st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 9]), min_size=1, max_size=25)


@given(st.integers(1, 7), st.sampled_from([1, 2, 4, 8]), st.booleans(), LENGTHS)
def test_a_ring_returns_the_window(
    window: int, step: int, twin: bool, lengths: list[int]
) -> None:
    columns, offset = Columns(Ring(window, step, twin)), 0
    for length in lengths:
        first, end = max(0, offset - window + 1), offset + length
        before = [
            (low, columns.planner.destroys(low, offset, first, offset, end))
            for low in range(max(0, offset - window), offset)
        ]
        returned = columns.update(first, offset, end)
        is_step = length == 1 and end - first == window
        assert (sorted(returned) if is_step else returned) == [*range(first, end)]
        for low, is_destroyed in before:
            assert is_destroyed or columns.read(low, offset) == [*range(low, offset)]
        first, offset = max(0, end - window), end
        assert columns.read(first, end) == [*range(first, end)]
    assert columns.planner.room <= 2 * compute_capacity(0, window + 8, step)


@given(st.sampled_from([1, 2, 4, 8]), LENGTHS)
def test_a_full_cache_keeps_every_position(step: int, lengths: list[int]) -> None:
    columns, offset = Columns(Linear(step)), 0
    for length in lengths:
        end = offset + length
        assert columns.update(0, offset, end) == [*range(end)]
        assert not columns.planner.destroys(0, offset, 0, offset, end)
        assert columns.planner.destroys(offset, end, 0, offset, end)
        offset = end


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_step_in_a_full_window_moves_one_token(window: int) -> None:
    columns = Columns(Ring(window, 4, True))
    for position in range(4 * window):
        columns.update(max(0, position - window + 1), position, position + 1)
        planner, copied, written, _ = columns.planner.plan(
            position - window + 2, position + 1, position + 2
        )
        if position >= window:
            assert (planner, copied, len(written)) == (columns.planner, None, 1)
            step = position - window + 2, position + 1, position + 2
            assert not planner.destroys(position - window + 2, position + 1, *step)
            assert planner.destroys(position - window + 1, position + 1, *step)


@pytest.mark.parametrize(("step", "most"), [(1, 15), (16, 11), (256, 7), (4096, 3)])
def test_ten_thousand_steps_move_house_a_few_times(step: int, most: int) -> None:
    planner, moves = Linear(step), 0
    for end in range(1, 10_001):
        planner, copied, _, _ = planner.plan(0, end - 1, end)
        moves += copied is not None
    assert moves <= most
    assert planner.room < 20_000 + step


@pytest.mark.parametrize(("length", "most"), [(1, 8), (4, 20)])
def test_a_ring_moves_its_tokens_a_few_times(length: int, most: int) -> None:
    """Of 640 tokens, in a window of 64: while it grows, and each time around."""
    ring, moves = Ring(64, 1, True), 0
    for begin in range(0, 640, length):
        first = max(0, begin - 63)
        ring, copied, _, _ = ring.plan(first, begin, begin + length)
        moves += copied is not None
    assert moves <= most
    for begin in range(640, 800):
        ring, *_ = ring.plan(begin - 63, begin, begin + 1)
    assert ring.room == 64  # steps drop the twin


@pytest.mark.parametrize(("twin", "most"), [(True, 22), (False, 11)])
def test_a_window_takes_more_columns_than_its_own_for_chunks_only(
    twin: bool, most: int
) -> None:
    """A window of 8 and chunks of 4, each of which returns 11 tokens."""
    ring, rooms = Ring(8, 1, twin), []
    for begin in range(0, 80, 4):
        ring, *_ = ring.plan(max(0, begin - 7), begin, begin + 4)
        rooms.append(ring.room)
    assert rooms == [4, 8] + [most] * 18
    for begin in range(80, 110):
        ring, *_ = ring.plan(begin - 7, begin, begin + 1)
    assert ring.room == 8
