"""The memory of a batch: a row is a slot of a pool, so that other rows stay in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from lockstep.impl.shared.form import Arrays, Form
from lockstep.impl.shared.memory import compute_capacity
from lockstep.impl.shared.rows import SPARE, choose_first, cut_ring, order_moves

WASTE = 4
"""A pool of more than so many times the cells that its rows need is replaced by a smaller
one when rows leave it."""


class Pool(Form, ABC):
    """K and V of the rows, in two arrays [slots, heads, room, dim].

    The rows are in consecutive slots, in order: together they are one view. Position p of
    a row is in column p mod room. Only a pool whose room is the window wraps.

    Args:
        rows: number of rows.
        window: the most columns; None for no limit.
        step: the room is rounded up to a multiple of this, but for the window.

    Attributes:
        arrays: K and V; None before the first write.
        slots, room: of the arrays.
        first: the slot of row 0.
    """

    def __init__(self, rows: int, window: int | None, step: int) -> None:
        super().__init__()
        self.rows, self.window, self.step = rows, window, step
        self.arrays: Arrays | None = None
        self.slots = self.room = self.first = 0

    # --- arrays of a framework ----------------------------------------------------------

    @abstractmethod
    def allocate(self, like: Any, slots: int, room: int) -> Any:
        """Returns a new array with the heads, dim and dtype of `like`.

        Attention multiplies hidden columns by 0, so every number in it is finite, unless
        it is poison.
        """

    @abstractmethod
    def read_slot(self, slot: int, begin: int, end: int) -> Arrays:
        """Returns the columns [begin, end) of a slot, as a view if possible."""

    @abstractmethod
    def write_slots(self, slot: int, column: int, arrays: Arrays) -> None:
        """Writes K and V [slots, heads, length, dim] to the slots from `slot` on and the
        columns from `column` on."""

    @abstractmethod
    def write_rows(self, column: int, arrays: Arrays) -> None:
        """Writes K and V to the columns from `column` on of all rows."""

    @abstractmethod
    def scatter(self, lengths: Any, skip: int, arrays: Arrays) -> None:
        """Writes K and V to each row from position lengths[row] + skip on.

        Args:
            lengths: see `TokenBatch.get_lengths`.
            skip: number of positions.
            arrays: [rows, heads, length, dim], not longer than the room.
        """

    @abstractmethod
    def read(self, width: int) -> Arrays:
        """Returns the first `width` columns of all rows."""

    @abstractmethod
    def copy(self, arrays: Arrays) -> Arrays:
        """Returns a copy that does not keep the pool from being written in place."""

    @abstractmethod
    def clone(self) -> Self:
        """Returns an independent pool with the same rows."""

    def move(self, source: int, target: int, size: int) -> None:
        """Copies the first `size` columns of a slot to another slot."""
        self.write_slots(target, 0, self.read_slot(source, 0, size))

    def settle(self) -> None:
        """Called when rows have got other slots or arrays."""

    # --- rows ---------------------------------------------------------------------------

    def reserve(self, like: Arrays, sizes: Sequence[int], needed: int) -> None:
        """Makes room for `needed` columns.

        Args:
            like: has heads, dims and dtypes of the first arrays.
            sizes: for each row the number of columns in use.
            needed: number of columns.
        """
        if needed > self.room:
            slots = max(self.rows, min(self.slots, self.rows + self.rows // 2))
            room = self.compute_room(self.room, needed)
            self.rebuild(self.list_slots(), sizes, slots, room, like)

    def list_slots(self) -> list[int]:
        return [*range(self.first, self.first + self.rows)]

    def compute_room(self, room: int, needed: int) -> int:
        """Returns the next room of a pool that has too little."""
        wanted = compute_capacity(room, needed, self.step)
        return wanted if self.window is None else min(wanted, self.window)

    def arrange(self, wanted: Sequence[int | None], sizes: Sequence[int]) -> None:
        """Gives each row its slot; as few tokens as possible move.

        Room for rows that join is made by half, so that a token moves a constant number
        of times on average.

        Args:
            wanted: for each row the slot that it has now; None if it is not in the pool.
            sizes: for each row the number of columns in use.
        """
        count, needed = len(wanted), max(sizes)
        if self.arrays is None:
            self.set_rows(count)
            return
        room = self.compute_room(0, needed + 1)
        first = choose_first(wanted, sizes, self.slots) if needed <= self.room else None
        if None in wanted:  # rows join
            slots, room = count + count // 2, max(room, self.room)
            stay = first is not None and not self.is_crowded(wanted, sizes, first)
        else:
            slots = count
            stay = self.slots * self.room <= WASTE * count * room
        if first is None or not stay:
            self.rebuild(wanted, sizes, slots, room)
        else:
            self.move_rows(wanted, sizes, first)

    def is_crowded(
        self, wanted: Sequence[int | None], sizes: Sequence[int], first: int
    ) -> bool:
        """Returns whether most tokens would move, and soon again."""
        pairs = [*zip(wanted, sizes, strict=True)]
        own = sum(size for slot, size in pairs if slot is not None)
        stay = sum(size for row, (slot, size) in enumerate(pairs, first) if slot == row)
        return own > 2 * stay and 2 * (self.slots - len(wanted)) < len(wanted)

    def move_rows(
        self, wanted: Sequence[int | None], sizes: Sequence[int], first: int
    ) -> None:
        moves = {
            target: source
            for target, source in enumerate(wanted, first)
            if source is not None and source != target and sizes[target - first]
        }
        held = dict(zip(wanted, sizes, strict=True))
        spare: Arrays | None = None
        for source, target in order_moves(moves):
            if target == SPARE:
                spare = self.copy(self.read_slot(source, 0, held[source]))
            elif source == SPARE:
                assert spare is not None
                self.write_slots(target, 0, spare)
            else:
                self.move(source, target, sizes[target - first])
        self.first = first
        self.set_rows(len(wanted))

    def rebuild(
        self,
        wanted: Sequence[int | None],
        sizes: Sequence[int],
        slots: int,
        room: int,
        like: Arrays | None = None,
    ) -> None:
        """Moves the rows into new arrays. like: see `reserve`."""
        held = [
            (row, self.read_slot(slot, 0, size))
            for row, (slot, size) in enumerate(zip(wanted, sizes, strict=True))
            if slot is not None and size and self.arrays is not None
        ]
        keys, values = self.arrays or like or ()
        self.arrays = (
            self.allocate(keys, slots, room),
            self.allocate(values, slots, room),
        )
        self.slots, self.room, self.first = slots, room, 0
        for row, arrays in held:
            self.write_slots(row, 0, arrays)
        self.set_rows(len(wanted))

    def set_rows(self, rows: int) -> None:
        self.rows = rows
        if self.form is not None:
            self.form, self.accepted = (rows, *self.form[1:]), None
        self.settle()

    def put(self, row: int, begin: int, arrays: Arrays) -> None:
        """Writes tokens of one row, [1, heads, length, dim], from position `begin` on."""
        for column, first, end in cut_ring(begin, arrays[0].shape[2], self.room):
            self.write_slots(self.first + row, column, cut(arrays, first, end))

    def put_all(self, row: int, other: Pool, sizes: Sequence[int]) -> None:
        """Writes the rows of another pool to the slots from that of `row` on."""
        for number, size in enumerate(sizes):
            if size:
                arrays = other.read_slot(other.first + number, 0, size)
                self.write_slots(self.first + row + number, 0, arrays)

    def clear(self) -> None:
        self.arrays, self.form = None, None
        self.slots = self.room = self.first = 0
        self.settle()


def cut(arrays: Arrays, begin: int, end: int) -> Arrays:
    """Returns the tokens [begin, end) of K and V."""
    return arrays[0][:, :, begin:end], arrays[1][:, :, begin:end]
