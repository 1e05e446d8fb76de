"""The cells of a cache: which are free, and who holds the others. No keys, no values."""

from __future__ import annotations

import numpy as np

from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.errors import CacheFullError
from lockstep.impl.shared.sequence_index import SequenceIndex

MAX_SEQUENCES = 64
BITS = np.left_shift(1, np.arange(MAX_SEQUENCES))
"""One bit for each sequence; that of the last is the sign."""

OTHERS = ~BITS


class Cells:
    """Metadata of a pool of cells, as arrays over all cells.

    table: [2, count]: the position of each cell, and a set of sequences as bits; a cell
    without a bit is free. indexes: the same seen from each sequence, so that no question
    about a few tokens looks at all cells.

    A batch goes to the lowest free cells, wherever they are: fragments cost nothing, and
    what is held stays close together.
    """

    def __init__(self, count: int, sequences: int) -> None:
        if not 0 < sequences <= MAX_SEQUENCES:
            raise ValueError(f"{sequences} sequences; 1 … {MAX_SEQUENCES} are possible")
        self.count = count
        self.table = np.zeros((2, count), np.int64)
        self.positions, self.bits = self.table
        self.indexes = [SequenceIndex() for _ in range(sequences)]
        self.free = count
        self.lowest = 0  # no cell below is free

    def add(self, batch: Batch) -> Ints:
        """Stores the rows; the cell of each. Raises CacheFullError before it changes
        anything."""
        rows = len(batch)
        self.check(rows)
        cells = self.find_free(rows)
        self.positions[cells] = batch.positions
        self.bits[cells] = BITS[batch.sequences]
        self.free -= rows
        self.lowest = int(cells[-1]) + 1
        if batch.is_step:
            rows_of_all = batch.owners, batch.positions.tolist(), cells.tolist()
            for owner, position, cell in zip(*rows_of_all, strict=True):
                self.indexes[owner].append(position, cell)
            return cells
        for owner in batch.owners:
            own = batch.get_rows(owner)
            self.indexes[owner].add(batch.positions[own], cells[own])
        return cells

    def check(self, rows: int) -> None:
        if rows > self.free:
            raise CacheFullError(
                f"{rows} tokens, and {self.free} of {self.count} cells are free"
            )

    def find_free(self, count: int) -> Ints:
        """The lowest `count` free cells, ascending; there must be so many."""
        first, size = self.lowest, max(64, 4 * count)
        following = self.bits[first : first + count]
        if len(following) == count and not np.count_nonzero(following):
            return np.arange(first, first + count)
        while True:
            window = self.bits[first : first + size]
            found: Ints = (window == 0).nonzero()[0][:count]
            if len(found) == count:
                return found + first
            assert first + size < self.count, "fewer are free than were counted"
            size *= 4

    def release(self, owner: int, cells: Ints) -> None:
        """The sequence leaves these cells; its track has done so already."""
        if not len(cells):
            return
        left = self.bits[cells] & OTHERS[owner]
        self.bits[cells] = left
        freed = cells[left == 0]
        if len(freed):
            self.free += len(freed)
            self.lowest = min(self.lowest, int(freed.min()))

    def drop(self, owner: int, begin: int, end: int | None) -> None:
        """The sequence leaves its tokens in [begin, end)."""
        track = self.indexes[owner]
        last = len(track) if end is None else track.find(end)
        self.release(owner, track.cut(track.find(begin), last))

    def evict(self, batch: Batch, memory: int) -> None:
        """Every sequence lets go of what lies over `memory` before its next token."""
        for owner, track in enumerate(self.indexes):
            if not len(track):
                continue
            low = track.last + 1
            if owner in batch.groups:
                low, _ = batch.get_span(owner)
            if track.first < low - memory:
                self.drop(owner, 0, low - memory)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.drop(target, 0, None)
        track = self.indexes[source]
        self.indexes[target] = copied = track.copy(track.find(length))
        self.bits[copied.cells] |= BITS[target]

    def is_shared(self, owner: int, cells: Ints) -> bool:
        """Whether another sequence holds one of the cells."""
        return bool((self.bits[cells] != BITS[owner]).any())

    def close_gap(self, owner: int, begin: int, end: int) -> Ints:
        """Removes [begin, end) and moves what follows up; the cells that moved."""
        self.drop(owner, begin, end)
        track = self.indexes[owner]
        first = track.find(end)
        moved = track.cells[first:]
        if not len(moved):
            return moved
        track.positions[first:] += begin - end
        self.positions[moved] += begin - end
        return moved

    def list_used(self) -> Ints:
        (cells,) = self.bits.nonzero()
        return cells

    def load(self, table: Ints) -> None:
        """The first cells hold what `table` says, the others are free."""
        used = table.shape[1]
        self.bits[used:] = 0
        self.table[:, :used] = table
        self.free, self.lowest = self.count - used, used
        positions, bits = table
        for owner in range(len(self.indexes)):
            (cells,) = (bits & BITS[owner]).nonzero()
            self.indexes[owner] = SequenceIndex()
            self.indexes[owner].add(positions[cells], cells)
