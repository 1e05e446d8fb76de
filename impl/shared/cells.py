"""The metadata of cells: their positions, and the sequences that hold them."""

from __future__ import annotations

import numpy as np

from lockstep.impl.shared.axes import get_end
from lockstep.impl.shared.batch import Ints, PassRows
from lockstep.impl.shared.errors import CacheFullError, MisuseError
from lockstep.impl.shared.sequence_index import Indexes, Places

MAX_SEQUENCES = 64
BITS = np.left_shift(1, np.arange(MAX_SEQUENCES))
"""One bit for each sequence; the last is the sign bit."""

OTHERS = ~BITS


def mark_limits(sequences: Ints, limits: Ints) -> Ints:
    """Returns the limits of each row in the form that kernels need.

    Args:
        sequences: [rows], the sequence of each row.
        limits: [2, rows], the visible range of positions of each row, [first, end).

    Returns:
        [3, rows]: the bit of the row's sequence, and the first and the last position that
        the row may see.
    """
    return np.stack((BITS[sequences], limits[0], limits[1] - 1))


FEW = 64


class Cells:
    """Metadata of a pool of cells, as arrays over all cells.

    A batch takes the lowest free cells, adjacent or not. Fragmentation therefore costs
    nothing, and the used cells stay close together.

    The index of a sequence is always up to date. The table keeps the bits of removed
    tokens until the table is read. Therefore, the time of a removal does not depend on
    the number of tokens.

    Args:
        count: number of cells.
        sequences: number of sequences, at most MAX_SEQUENCES.
        few: minimum number of cells to search first for free cells.
        unit: the distance of two adjacent positions in the table and the indexes: 1; or
            UNIT for positions of three axes, see `impl.shared.axes`.

    Attributes:
        table: int64 [2, count], the position of each cell, in units, and the set of its
            sequences as bits. A cell without a bit is free.
        positions, bits: the two rows of `table`.
        left: the removed cells of each sequence whose bits are still in `table`.
        indexes: the cells of each sequence, so that a query for a few tokens does not
            scan all cells.
        free: number of free cells.
        lowest: no cell below this cell is free.
    """

    def __init__(self, count: int, sequences: int, few: int = FEW, unit: int = 1) -> None:
        if not 0 < sequences <= MAX_SEQUENCES:
            raise MisuseError(
                f"the number of sequences must be 1 … {MAX_SEQUENCES}, not {sequences}"
            )
        self.count, self.few, self.unit = count, few, unit
        self.stored = np.zeros((2, count), np.int64)
        self.positions, _ = self.stored
        self.indexes = Indexes(sequences)
        self.unused = count
        self.lowest = 0
        self.freed: list[tuple[int, Places]] = []

    @property
    def table(self) -> Ints:
        self.settle()
        return self.stored

    @property
    def bits(self) -> Ints:
        self.settle()
        return self.stored[1]

    @property
    def free(self) -> int:
        self.settle()
        return self.unused

    def settle(self) -> None:
        """Clears the bits of removed tokens in the table."""
        while self.freed:
            self.release(*self.freed.pop())

    def add(self, batch: PassRows) -> Ints:
        """Stores the rows, and returns the cell of each row.

        Raises:
            CacheFullError: there are too few free cells. Nothing changes.
        """
        rows = len(batch)
        self.check(rows)
        cells = self.find_free(rows)
        self.positions[cells] = batch.places
        self.bits[cells] = BITS[batch.sequences]
        self.unused -= rows
        self.lowest = int(cells[-1]) + 1
        if batch.is_step:
            self.indexes.append(batch.sequences, batch.places, cells)
            return cells
        for owner in batch.owners:
            owner_rows = batch.get_rows(owner)
            self.indexes[owner].add(batch.places[owner_rows], cells[owner_rows])
        return cells

    def check(self, rows: int) -> None:
        if rows > self.free:
            raise CacheFullError(
                f"{rows} tokens do not fit: {self.free} of {self.count} cells are free"
            )

    def find_free(self, count: int) -> Ints:
        """Returns the lowest `count` free cells, ascending; at least `count` must be
        free."""
        bits = self.bits
        first, size = self.lowest, max(self.few, 4 * count)
        following = bits[first : first + count]
        if len(following) == count and not np.count_nonzero(following):
            return np.arange(first, first + count)
        while True:
            window = bits[first : first + size]
            starts: Ints = (window == 0).nonzero()[0][:count]
            if len(starts) == count:
                return starts + first
            assert first + size < self.count, "fewer are free than were counted"
            size *= 4

    def release(self, owner: int, cells: Places) -> None:
        """Removes the sequence from these cells, which its index no longer contains."""
        bits = self.stored[1]
        remaining = bits[cells]  # a view if they are a slice, else a copy
        remaining &= OTHERS[owner]
        if not isinstance(cells, slice):
            bits[cells] = remaining
        freed = len(remaining) - int(np.count_nonzero(remaining))
        if freed:
            self.unused += freed
            lowest = cells.start if isinstance(cells, slice) else int(cells.min())
            self.lowest = min(self.lowest, lowest)

    def drop(self, owner: int, begin: int, end: int | None) -> None:
        """Removes the sequence from its cells at positions [begin, end)."""
        index = self.indexes[owner]
        first = index.find(begin * self.unit)
        last = index.get_span()[1] if end is None else index.find(end * self.unit)
        if first < last:
            self.freed.append((owner, index.cut(first, last)))

    def evict(self, batch: PassRows, memory: int) -> None:
        """Drops the tokens of every sequence that are too far from its next token.

        A token is too far if its distance exceeds `memory` positions.
        """
        for owner, index in enumerate(self.indexes):
            if not len(index):
                continue
            low = batch.spans[owner][0] if owner in batch.spans else self.get_end(owner)
            if index.first < (low - memory) * self.unit:
                self.drop(owner, 0, low - memory)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.drop(target, 0, None)
        index = self.indexes[source]
        begin, end = index.get_span()[0], index.find(length * self.unit)
        self.bits[index.locate(begin, end)] |= BITS[target]
        self.indexes[target].replace(self.indexes.arrays[:, begin:end])

    def list_behind(self, owner: int, position: int) -> Ints:
        """Returns the cells of a sequence at or after `position`."""
        return self.indexes[owner].list_behind(position * self.unit)

    def get_end(self, owner: int) -> int:
        """Returns 1 + the largest coordinate of a sequence that has tokens."""
        index = self.indexes[owner]
        return index.last + 1 if self.unit == 1 else get_end(index.positions)

    def is_shared(self, owner: int, cells: Ints) -> bool:
        """Returns whether another sequence also holds one of the cells."""
        return bool((self.bits[cells] != BITS[owner]).any())

    def close_gap(self, owner: int, begin: int, end: int) -> Ints:
        """Removes [begin, end), lowers the positions of later tokens, and returns the
        moved cells."""
        index = self.indexes[owner]
        dense = index.dense
        self.drop(owner, begin, end)
        moved = self.list_behind(owner, end)
        if not len(moved):
            return moved
        index.positions[-len(moved) :] += (begin - end) * self.unit
        index.dense = dense and index.last - index.first == len(index) - 1
        self.positions[moved] += (begin - end) * self.unit
        return moved

    def list_used(self) -> Ints:
        (cells,) = self.bits.nonzero()
        return cells

    def load(self, table: Ints) -> None:
        """Sets the first cells to `table`, and frees all other cells."""
        used = table.shape[1]
        self.bits[used:] = 0
        self.table[:, :used] = table
        self.unused, self.lowest = self.count - used, used
        positions, bits = table
        for owner in range(len(self.indexes)):
            (cells,) = (bits & BITS[owner]).nonzero()
            index = self.indexes[owner]
            index.replace(np.stack((positions[cells], cells)))
