"""The cells of each sequence, in order of position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.impl.shared.batch import Ints, get_bounds, is_ascending

Places = Ints | slice
"""Some cells; a slice if they are consecutive and ascending."""

POSITION, CELL = 0, 1

FEW = 3
"""Up to this many sequences are looked at one by one, which takes less time than a few
operations on arrays."""


class Indexes:
    """The tokens of all sequences: their positions, ascending, and the cell of each.

    All are rows of one array, so that a step of many sequences is a few operations. A row
    has room at either end: tokens are added at the end and evicted at the begin, and
    neither moves the others.

    Args:
        count: number of sequences.
        few: up to so many sequences are looked at one by one.

    Attributes:
        arrays: int64 [2, sequences, room], positions and cells; used of a row are
            [begin, end).
        begin, end: int64 [sequences].
        ascending: bool [sequences]. If True, the cells ascend too; if False, they may or
            may not.
        rows: the index of each sequence.
    """

    def __init__(self, count: int, few: int = FEW) -> None:
        self.few = few
        self.arrays = np.empty((2, count, 64), np.int64)
        self.begin, self.end = np.zeros((2, count), np.int64)
        self.ascending = np.ones(count, np.bool_)
        self.rows = [SequenceIndex(self, owner) for owner in range(count)]

    def __getitem__(self, owner: int) -> SequenceIndex:
        return self.rows[owner]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SequenceIndex]:
        return iter(self.rows)

    # --- many sequences, each once ------------------------------------------------------

    def append(self, owners: Ints, positions: Ints, cells: Ints) -> None:
        """Adds one token to each of some sequences."""
        if len(owners) > self.few and self.append_last(owners, positions, cells):
            return
        tokens = zip(owners.tolist(), positions.tolist(), cells.tolist(), strict=True)
        for owner, position, cell in tokens:
            self.rows[owner].append(position, cell)

    def append_last(self, owners: Ints, positions: Ints, cells: Ints) -> bool:
        """Does the same if no token belongs before another one; else returns False."""
        ends = self.end[owners]
        if int(ends.max()) >= self.arrays.shape[2]:
            for owner in owners.tolist():
                self.rows[owner].make_room(1)
            ends = self.end[owners]
        last_position, last_cell = self.arrays[:, owners, ends - 1]
        first = ends == self.begin[owners]
        if not (first | (last_position <= positions)).all():
            return False
        self.arrays[POSITION, owners, ends] = positions
        self.arrays[CELL, owners, ends] = cells
        self.ascending[owners] &= last_cell < cells
        self.ascending[owners] |= first
        self.end[owners] = ends + 1
        return True

    def find(self, owners: Ints, positions: Ints) -> Ints:
        """Returns the index of the first token at or behind a position.

        Args:
            owners: [sequences], each has a token.
            positions: [.., sequences].
        """
        if len(owners) <= self.few:
            found, wrong = np.empty_like(positions), np.ones(positions.shape, np.bool_)
        else:
            found, wrong = self.guess(owners, positions)
        for place in zip(*wrong.nonzero(), strict=True):
            index = self.rows[owners.item(place[-1])]
            found[place] = index.find(positions.item(place))
        return found

    def guess(self, owners: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Returns what `find` does if positions are consecutive, and where they are not,
        so that it is wrong."""
        begin, end = self.begin[owners], self.end[owners]
        stored = self.arrays[POSITION]
        found = positions + (end - 1 - stored[owners, end - 1])
        np.maximum(found, begin, out=found)
        np.minimum(found, end, out=found)
        before = stored[owners, np.maximum(found - 1, begin)]
        there = stored[owners, np.minimum(found, end - 1)]
        wrong = (before >= positions) & (found > begin)
        wrong |= (there < positions) & (found < end)
        found -= begin
        return found, wrong

    def get_range(self, owners: Ints, first: Ints, last: Ints) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at indexes [first, last)
        of some sequences, each with one such token at least."""
        if len(owners) > self.few and self.ascending[owners].all():
            begin, cells = self.begin[owners], self.arrays[CELL]
            lowest = cells[owners, begin + first].min()
            return int(lowest), int(cells[owners, begin + last - 1].max())
        spans = zip(owners.tolist(), first.tolist(), last.tolist(), strict=True)
        bounds = [self.rows[owner].get_range(*span) for owner, *span in spans]
        lowests, highests = zip(*bounds, strict=True)
        return min(lowests), max(highests)

    def list_cells(self, owners: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Returns the cells of the tokens at indexes [first, last) of some sequences, one
        sequence after the other, and how many each has."""
        counts = np.maximum(last - first, 0)
        ends = counts.cumsum()
        starts = owners * self.arrays.shape[2] + self.begin[owners] + first
        at = np.repeat(starts - ends + counts, counts)
        at += np.arange(len(at))
        return self.arrays[CELL].reshape(-1)[at], counts

    def grow(self, room: int) -> None:
        arrays = np.empty((2, len(self.rows), room), np.int64)
        for owner, index in enumerate(self.rows):
            arrays[:, owner, : len(index)] = index.used
        self.arrays = arrays
        self.end -= self.begin
        self.begin[:] = 0


class SequenceIndex:
    """The positions of one sequence, ascending, and the cell of each.

    Args:
        book: the indexes of all sequences.
        owner: number of the sequence.
    """

    def __init__(self, book: Indexes, owner: int) -> None:
        self.book, self.owner = book, owner

    def __len__(self) -> int:
        begin, end = self.get_span()
        return end - begin

    def get_span(self) -> tuple[int, int]:
        """Returns which indexes of the row are used: [begin, end)."""
        book, owner = self.book, self.owner
        return book.begin.item(owner), book.end.item(owner)

    @property
    def used(self) -> Ints:
        """[2, tokens], positions and cells."""
        begin, end = self.get_span()
        return self.book.arrays[:, self.owner, begin:end]

    @property
    def positions(self) -> Ints:
        return self.used[POSITION]

    @property
    def cells(self) -> Ints:
        return self.used[CELL]

    @property
    def first(self) -> int:
        return self.positions.item(0)

    @property
    def last(self) -> int:
        return self.positions.item(-1)

    @property
    def ascending(self) -> bool:
        return self.book.ascending.item(self.owner)

    @ascending.setter
    def ascending(self, ascending: bool) -> None:
        self.book.ascending[self.owner] = ascending

    def find(self, position: int) -> int:
        """Returns the index of the first token at or behind `position`."""
        (begin, end), arrays = self.get_span(), self.book.arrays
        if begin == end or position <= arrays.item(POSITION, self.owner, begin):
            return 0
        if position > arrays.item(POSITION, self.owner, end - 1):
            return end - begin
        return int(arrays[POSITION, self.owner, begin:end].searchsorted(position))

    def get_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at [first, last)."""
        begin, arrays = self.book.begin.item(self.owner), self.book.arrays
        if self.ascending:
            lowest = arrays.item(CELL, self.owner, begin + first)
            return lowest, arrays.item(CELL, self.owner, begin + last - 1)
        return get_bounds(arrays[CELL, self.owner, begin + first : begin + last])

    def locate(self, first: int, last: int) -> Places:
        """Returns the cells of the tokens at [first, last), of a slice without looking at
        each."""
        if first >= last:
            return slice(0, 0)
        if self.ascending:
            lowest, highest = self.get_range(first, last)
            if highest - lowest == last - first - 1:
                return slice(lowest, highest + 1)
        return self.cells[first:last]

    def add(self, positions: Ints, cells: Ints) -> None:
        """Adds tokens, in any order and at any position."""
        count = len(positions)
        if not count:
            return
        self.make_room(count)
        begin, end = self.get_span()
        row = self.book.arrays[:, self.owner]
        row[POSITION, end : end + count], row[CELL, end : end + count] = positions, cells
        self.book.end[self.owner] = end + count
        self.ascending = self.ascending or begin == end
        if end + count - begin == 1:
            return
        # Compare from the last old token on.
        since = row[:, max(begin, end - 1) : end + count]
        ordered, ascending = is_ascending(since[POSITION]), is_ascending(since[CELL])
        self.ascending = self.ascending and ordered and ascending
        if not ordered:
            used = self.used
            used[:] = used[:, used[POSITION].argsort(kind="stable")]

    def append(self, position: int, cell: int) -> None:
        """Adds one token; faster than `add`, which handles many."""
        book, owner = self.book, self.owner
        self.make_room(1)
        begin, end = self.get_span()
        arrays = book.arrays
        if begin == end or position < arrays.item(POSITION, owner, end - 1):
            self.add(np.array([position]), np.array([cell]))
            return
        if arrays.item(CELL, owner, end - 1) > cell:
            self.ascending = False
        arrays[POSITION, owner, end], arrays[CELL, owner, end] = position, cell
        book.end[owner] = end + 1

    def make_room(self, count: int) -> None:
        """Makes room for more tokens, behind a row that evictions freed at its begin, or
        in rows that are larger."""
        (begin, end), room = self.get_span(), self.book.arrays.shape[2]
        if end + count <= room:
            return
        needed = 2 * (end - begin + count)
        if needed > room:
            self.book.grow(needed)
            return
        used = self.used.copy()
        self.book.begin[self.owner], self.book.end[self.owner] = 0, end - begin
        self.used[:] = used

    def cut(self, first: int, last: int) -> Places:
        """Removes the tokens at indexes [first, last) and returns their cells."""
        book, owner = self.book, self.owner
        cells = self.locate(first, last)
        if not isinstance(cells, slice):
            cells = cells.copy()
        begin, end = self.get_span()
        if first == 0:
            book.begin[owner] = begin + last
            return cells
        behind = book.arrays[:, owner, begin + last : end]
        if behind.shape[1]:
            to = begin + first
            book.arrays[:, owner, to : to + behind.shape[1]] = behind.copy()
        book.end[owner] = end - (last - first)
        return cells

    def replace(self, other: SequenceIndex, count: int) -> None:
        """Becomes an index of the first `count` tokens of the other one."""
        self.cut(0, len(self))
        self.add(*other.used[:, :count])
