"""Computes the columns of a pool that hold the tokens of each row."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add as plus

from lockstep.impl.shared.linear import Run, compute_capacity
from lockstep.impl.shared.rows import add, cut_ring


class Columns:
    """The columns of rows that share one array.

    Position p of a row is in column starts[row] + p, modulo the window if there is a
    window. If all rows end in the same column, one slice writes to all rows. Therefore,
    the start of a row is chosen so that the row ends in the same column as the others,
    unless another row would have to move.

    Args:
        rows: number of rows.
        window: maximum number of columns; None for no limit.
        step: `room` is rounded up to a multiple of this number, up to the window.

    Attributes:
        room: number of columns. A ring wraps when `room` equals the window.
        starts: for each row, the column of position 0.
    """

    def __init__(self, rows: int, window: int | None, step: int) -> None:
        self.window, self.step = window, step
        self.starts = (0,) * rows
        self.room = 0

    def count(self, length: int) -> int:
        """Returns how many of `length` written tokens of a row are stored."""
        return length if self.window is None else min(length, self.window)

    def wrap(self, column: int) -> int:
        return column if self.window is None else column % self.window

    def get_span(self, starts: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
        """Returns the columns (begin, end) that hold the tokens of all rows.

        If a ring has wrapped, the span is all columns.
        """
        if not min(lengths):
            filled = [pair for pair in zip(starts, lengths, strict=True) if pair[1]]
            starts, lengths = zip(*filled, strict=True) if filled else ([0], [0])
        begin, end = min(starts), max(map(plus, starts, lengths))
        if self.window is not None and end > self.window:
            return 0, self.window
        return begin, end

    def plan(self, lengths: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
        """Returns the new `starts` for an update.

        The starts differ from the present starts if rows are empty, or if `room` is too
        small.

        Args:
            lengths: for each row, the number of tokens written so far.
            counts: for each row, the number of tokens of the update.
        """
        ends = add(lengths, counts)
        starts = self.starts if min(lengths) else self.place_empty(lengths, ends)
        if self.get_span(starts, ends)[1] <= self.room:
            return starts
        return self.align(ends, max(ends))

    def place_empty(self, lengths: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
        """Returns the starts of all rows; empty rows may start at any column."""
        rows = [*zip(self.starts, lengths, ends, strict=True)]
        last = max(start + end if length else end for start, length, end in rows)
        return tuple(
            start if length else self.wrap(last - end) for start, length, end in rows
        )

    def align(self, lengths: Sequence[int], end: int) -> tuple[int, ...]:
        """Returns the starts with which rows of these lengths all end at column `end`."""
        return tuple(self.wrap(end - length) for length in lengths)

    def find_cursor(self, lengths: Sequence[int]) -> int | None:
        """Returns the column where all rows end; None if they end in different
        columns."""
        ends = {*map(plus, self.starts, lengths)}
        if self.window is not None:
            ends = {end % self.window for end in ends}
        return ends.pop() if len(ends) == 1 else None

    def find_runs(self, start: int, length: int, room: int) -> list[Run]:
        """Returns the columns of the stored tokens of a row, in one or two runs."""
        first = length - self.count(length)
        return [
            (first + begin, column, column + end - begin)
            for column, begin, end in cut_ring(start + first, length - first, room)
        ]

    def moves(self, starts: Sequence[int], lengths: Sequence[int]) -> bool:
        """Returns whether new starts move a row that has tokens."""
        return starts is not self.starts and any(
            length and old != new
            for old, new, length in zip(self.starts, starts, lengths, strict=True)
        )

    def compute_room(self, room: int, needed: int) -> int:
        """Returns the number of columns of a larger pool, if the present pool is too
        small."""
        wanted = compute_capacity(room, needed, self.step)
        return wanted if self.window is None else min(wanted, self.window)
