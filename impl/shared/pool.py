"""The memory of a batch: a pool in which each row has a slot, and rows move
independently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Self

from lockstep.impl.shared.columns import Columns
from lockstep.impl.shared.layer import Form
from lockstep.impl.shared.memory import Arrays
from lockstep.impl.shared.rows import SPARE, add, choose_first, cut_ring, order_moves

WASTE = 4
"""When rows leave a pool that has more than this many times the cells that its rows need,
a smaller pool replaces it."""


class Row(NamedTuple):
    """A row of a pool.

    Attributes:
        slot: the slot of the row; None if its tokens are not in the pool.
        start: the column of position 0.
        length: the number of tokens written to the row; a ring keeps only the last
            tokens.
    """

    slot: int | None
    start: int
    length: int


class RowPool(Form, Columns, ABC):
    """K and V of the rows, in two arrays [slots, heads, room, dim].

    The rows are in consecutive slots, in order, so that one view contains all rows.

    Args:
        rows, window, step: see `Columns`.

    Attributes:
        arrays: K and V; None before the first write.
        slots: number of slots.
        first: the slot of row 0.
        has_grown: whether the pool had to grow for rows that joined.
    """

    def __init__(self, rows: int, window: int | None, step: int) -> None:
        Form.__init__(self)
        Columns.__init__(self, rows, window, step)
        self.rows = rows
        self.arrays: Arrays | None = None
        self.slots = self.first = 0
        self.has_grown = False

    # --- arrays of a framework ----------------------------------------------------------

    @abstractmethod
    def allocate(self, like: Any, slots: int, room: int, rows_kept: int) -> Any:
        """Returns a new array.

        All its numbers are finite, because attention multiplies hidden columns by 0. The
        only exception is poison, which the harness requests.

        Args:
            like: an array with the heads, dim and dtype of the new array.
            slots, room: number of slots, and number of columns.
            rows_kept: number of leading rows of `like` to copy to the first slots.
        """

    def read_slot(self, slot: int, begin: int, end: int) -> Arrays:
        """Returns the columns [begin, end) of a slot, as a view if possible."""
        assert self.arrays is not None
        keys, values = self.arrays
        index = slice(slot, slot + 1), slice(None), slice(begin, end)
        return keys[index], values[index]

    @abstractmethod
    def write_slots(self, slot: int, column: int, arrays: Arrays) -> None:
        """Writes K and V [slots, heads, length, dim], beginning at a slot and a
        column."""

    @abstractmethod
    def write_rows(self, column: int, arrays: Arrays) -> None:
        """Writes K and V to the columns from `column` on of all rows."""

    @abstractmethod
    def scatter(self, ends: Any, skip: int, arrays: Arrays) -> None:
        """Writes K and V to each row from column ends[row] + skip on.

        Args:
            ends: see `TokenBatch.get_ends`.
            skip: number of columns.
            arrays: [rows, heads, length, dim]; `length` is at most `room`.
        """

    @abstractmethod
    def read(self, begin: int, end: int) -> Arrays:
        """Returns the columns [begin, end) of all rows."""

    @abstractmethod
    def join(self, pieces: Sequence[Arrays]) -> Arrays:
        """Returns a concatenated copy of pieces of K and V."""

    @abstractmethod
    def copy(self, arrays: Arrays) -> Arrays:
        """Returns a copy of the arrays, so that later writes to the pool can be done in
        place."""

    @abstractmethod
    def clone(self) -> Self:
        """Returns an independent pool with the same rows."""

    def move(self, source: int, target: int, begin: int, end: int) -> None:
        """Copies the columns [begin, end) of a slot to another slot."""
        self.write_slots(target, begin, self.read_slot(source, begin, end))

    def settle(self) -> None:
        """Does nothing here; called after rows have moved to other slots or arrays."""

    # --- tokens of a row ----------------------------------------------------------------

    def list_parts(self, slot: int, start: int, length: int) -> list[tuple[int, Arrays]]:
        """Returns the stored tokens of a row, in order, in one or two runs.

        A run consists of the position of its first token, and its K and V.
        """
        return [
            (position, self.read_slot(slot, begin, end))
            for position, begin, end in self.find_runs(start, length, self.room)
        ]

    def read_row(self, row: int, length: int) -> Arrays | None:
        """Returns K and V of the stored tokens of a row, in any order.

        Returns None for a row without tokens.
        """
        slot, start = self.first + row, self.starts[row]
        begin, end = self.get_span([start], [length])
        if end - begin == self.count(length):
            return self.read_slot(slot, begin, end) if length else None
        return self.join([piece for _, piece in self.list_parts(slot, start, length)])

    # --- rows ---------------------------------------------------------------------------

    def reserve(
        self, like: Arrays, lengths: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Reserves columns for `counts` more tokens of each row.

        Args:
            like: arrays with the heads, dims and dtypes of the first arrays.
            lengths, counts: see `plan`.
        """
        starts, ends = self.plan(lengths, counts), add(lengths, counts)
        needed = self.get_span(starts, ends)[1]
        if needed > self.room or self.moves(starts, lengths):
            slots = max(self.rows, min(self.slots, self.rows + self.rows // 2))
            room = self.compute_room(min(self.room, needed), needed)
            self.rebuild(self.list_rows(lengths), starts, slots, room, like)
        self.starts = starts

    def open(self, like: Arrays, lengths: Sequence[int]) -> None:
        """Reserves columns for rows of these lengths, and for the next token."""
        room = self.compute_room(0, max(map(self.count, lengths)) + 1)
        rows = [Row(None, 0, 0)] * self.rows
        self.rebuild(rows, self.align(lengths, max(lengths)), self.rows, room, like)

    def list_slots(self) -> list[int]:
        return [*range(self.first, self.first + self.rows)]

    def arrange(self, rows: Sequence[Row]) -> None:
        """Assigns a slot to each row, so that as few tokens as possible move.

        When the pool grows for the first time, it gets the slots that its rows need and
        no more, because many batches grow once. Later, it gets 50 % more slots than it
        needs, so that a token moves a constant number of times on average.

        Args:
            rows: the rows, with their present slots.
        """
        if self.arrays is None:
            self.set_rows(len(rows))
            return
        wanted, starts, lengths = zip(*rows, strict=True)
        sizes = [*map(self.count, lengths)]
        needed, count = self.get_span(starts, lengths)[1], len(rows)
        room = self.compute_room(0, max(sizes) + 1)
        first = choose_first(wanted, sizes, self.slots) if needed <= self.room else None
        if None in wanted:  # rows join
            spare = count // 2 if self.has_grown else 0
            slots, room = count + spare, max(room, self.room)
            stay = first is not None and not self.is_crowded(wanted, sizes, first)
            self.has_grown |= not stay
        else:
            slots = count
            stay = self.slots * self.room <= WASTE * count * room
        if first is None or not stay:
            self.rebuild(rows, self.align(lengths, max(lengths)), slots, room)
        else:
            self.move_rows(rows, first)

    def is_crowded(
        self, wanted: Sequence[int | None], sizes: Sequence[int], first: int
    ) -> bool:
        """Returns whether most tokens would have to move now, and would soon have to move
        again."""
        pairs = [*zip(wanted, sizes, strict=True)]
        size_total = sum(size for slot, size in pairs if slot is not None)
        stay = sum(size for row, (slot, size) in enumerate(pairs, first) if slot == row)
        return size_total > 2 * stay and 2 * (self.slots - len(wanted)) < len(wanted)

    def move_rows(self, rows: Sequence[Row], first: int) -> None:
        """Moves rows to the slots from `first` on; their columns stay."""
        moves = {
            target: row.slot
            for target, row in enumerate(rows, first)
            if row.slot is not None and row.slot != target and row.length
        }
        columns = {row.slot: self.get_span([row.start], [row.length]) for row in rows}
        spare: Arrays | None = None
        spared = 0
        for source, target in order_moves(moves):
            if target == SPARE:
                spare = self.copy(self.read_slot(source, *columns[source]))
                spared = columns[source][0]
            elif source == SPARE:
                assert spare is not None
                self.write_slots(target, spared, spare)
            else:
                self.move(source, target, *columns[source])
        self.first = first
        self.starts = tuple(row.start for row in rows)
        self.set_rows(len(rows))

    def rebuild(
        self,
        rows: Sequence[Row],
        starts: Sequence[int],
        slots: int,
        room: int,
        like: Arrays | None = None,
    ) -> None:
        """Moves the rows into new arrays, with new starts.

        Args:
            rows: the rows, with their present slots.
            starts: for each row, the new column of position 0.
            slots, room: number of slots, and number of columns.
            like: see `reserve`.
        """
        rows_kept = self.count_kept(rows, starts) if room == self.room else 0
        filled = [
            (number, self.list_parts(row.slot, row.start, row.length))
            for number, row in enumerate(rows[rows_kept:], rows_kept)
            if row.slot is not None and row.length and self.arrays is not None
        ]
        keys, values = self.arrays or like or ()
        self.arrays = (
            self.allocate(keys, slots, room, rows_kept),
            self.allocate(values, slots, room, rows_kept),
        )
        self.slots, self.room, self.first = slots, room, 0
        self.starts = tuple(starts)
        for number, pieces in filled:
            for position, arrays in pieces:
                self.put(number, position, arrays)
        self.set_rows(len(rows))

    def count_kept(self, rows: Sequence[Row], starts: Sequence[int]) -> int:
        """Counts the leading rows whose slots and starts do not change."""
        places = enumerate(zip(rows, starts, strict=True), self.first)
        stay = (row[:2] == (slot, start) for slot, (row, start) in places)
        return sum(takewhile(bool, stay))

    def set_rows(self, rows: int) -> None:
        self.rows = rows
        if self.arrays is None:
            self.starts = (0,) * rows
        if self.form is not None:
            self.form, self.accepted = (rows, *self.form[1:]), None
        self.settle()

    def list_rows(self, lengths: Sequence[int]) -> list[Row]:
        return [*map(Row, self.list_slots(), self.starts, lengths)]

    def extend(
        self, lengths: Sequence[int], joined: RowPool, more_lengths: Sequence[int]
    ) -> None:
        """Appends the rows of another pool.

        Args:
            lengths: number of tokens written to each row.
            joined: the other pool, with tokens of the same form.
            more_lengths: number of tokens written to each row of the other pool.
        """
        end = max(add(self.starts, lengths))
        rows = self.list_rows(lengths)
        rows += [Row(None, self.place(end, length), length) for length in more_lengths]
        self.arrange(rows)
        for number, row in enumerate(joined.list_rows(more_lengths)):
            for position, arrays in joined.list_parts(*row):
                self.put(len(lengths) + number, position, arrays)

    def place(self, end: int, length: int) -> int:
        """Returns the start column of a row so that the row ends at column `end`. A row
        that is too long for this ends at a later column."""
        return (
            self.wrap(end - length) if self.room == self.window else max(0, end - length)
        )

    def even_out(self, lengths: Sequence[int]) -> None:
        """Moves the tokens of rows so that all rows end in the same column."""
        if self.arrays is None or self.find_cursor(lengths) is not None:
            return
        end = max(add(self.starts, lengths))
        moved = {
            number: [(begin, self.copy(piece)) for begin, piece in self.list_parts(*row)]
            for number, row in enumerate(self.list_rows(lengths))
            if self.wrap(end - row.length) != row.start
        }
        self.starts = self.align(lengths, end)
        for number, pieces in moved.items():
            for position, arrays in pieces:
                self.put(number, position, arrays)

    def put(self, row: int, begin: int, arrays: Arrays) -> None:
        """Writes tokens of one row, [1, heads, length, dim], from position `begin` on."""
        start, length = self.starts[row] + begin, arrays[0].shape[2]
        for column, first, end in cut_ring(start, length, self.room):
            self.write_slots(self.first + row, column, cut(arrays, first, end))

    def clear(self) -> None:
        self.arrays, self.form = None, None
        self.slots = self.room = self.first = 0
        self.starts = (0,) * self.rows
        self.settle()


def cut(arrays: Arrays, begin: int, end: int) -> Arrays:
    """Returns the tokens [begin, end) of K and V."""
    return arrays[0][:, :, begin:end], arrays[1][:, :, begin:end]
