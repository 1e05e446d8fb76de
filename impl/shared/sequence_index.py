"""The cells of each sequence, in order of position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.impl.shared.batch import Ints, get_bounds, is_ascending

Places = Ints | slice
"""Some cells; a slice if they are consecutive and ascending."""

FEW = 3
"""Up to this many sequences are looked at one by one, which takes less time than a few
operations on arrays."""

ROOM = 64


class Indexes:
    """The tokens of all sequences: their positions, ascending, and the cell of each.

    All are parts of one array, so that a step of many sequences is a few operations. A
    sequence has room at either end: tokens are added at the end and evicted at the begin,
    and neither moves the others.

    Args:
        count: number of sequences.
        few: up to so many sequences are looked at one by one.

    Attributes:
        arrays: int64 [2, sequences * room], positions and cells.
        positions, cells: the two rows of it.
        begin, end: int64 [sequences], which part of a row is used by each.
        limit: int64 [sequences], where the room of each ends.
        ascending: bool [sequences]. If True, the cells ascend too; if False, they may or
            may not.
        rows: the index of each sequence.
    """

    def __init__(self, count: int, few: int = FEW) -> None:
        self.few = few
        self.arrays = np.empty((2, 0), np.int64)
        self.begin = self.end = np.zeros(count, np.int64)
        self.ascending = np.ones(count, np.bool_)
        self.rows = [SequenceIndex(self, owner) for owner in range(count)]
        self.allocate(ROOM)

    def allocate(self, room: int) -> None:
        """Makes room for so many tokens of each sequence."""
        held = [index.used for index in self.rows]
        self.room, count = room, len(held)
        self.arrays = np.empty((2, count * room), np.int64)
        self.positions, self.cells = self.arrays
        lengths, self.begin = self.end - self.begin, np.arange(count) * room
        self.end, self.limit = self.begin + lengths, self.begin + room
        for index, tokens in zip(self.rows, held, strict=True):
            index.used[:] = tokens

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
        if (self.end[owners] == self.limit[owners]).any():
            for owner in owners.tolist():
                self.rows[owner].make_room(1)
        end = self.end[owners]
        last, first = end - 1, end == self.begin[owners]
        if not (first | (self.positions[last] <= positions)).all():
            return False
        ascending = (self.cells[last] < cells) & self.ascending[owners]
        self.ascending[owners] = ascending | first
        self.positions[end], self.cells[end] = positions, cells
        self.end[owners] = end + 1
        return True

    def find(self, owners: Ints, positions: Ints) -> Ints:
        """Returns the index of the first token at or behind a position.

        Args:
            owners: [sequences], each has a token.
            positions: [bounds, sequences].
        """
        if len(owners) <= self.few:
            columns = zip(owners.tolist(), positions.T.tolist(), strict=True)
            each = [[*map(self.rows[owner].find, column)] for owner, column in columns]
            return np.array(each, np.int64).T
        found, wrong = self.guess(owners, positions)
        for place in zip(*wrong.nonzero(), strict=True):
            index = self.rows[owners.item(place[-1])]
            found[place] = index.find(positions.item(place))
        return found

    def guess(self, owners: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Returns what `find` does if positions are consecutive, and where they are not,
        so that it is wrong."""
        begin, end = self.begin[owners], self.end[owners]
        stored, last = self.positions, end - 1
        found = np.maximum(positions + (last - stored[last]), begin)
        np.minimum(found, end, out=found)
        before = stored[np.maximum(found - 1, begin)]
        there = stored[np.minimum(found, last)]
        wrong = (before >= positions) & (found > begin)
        wrong |= (there < positions) & (found < end)
        return found - begin, wrong

    def get_range(self, owners: Ints, first: Ints, last: Ints) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at indexes [first, last)
        of some sequences, each with one such token at least."""
        if len(owners) > self.few and self.ascending[owners].all():
            begin, cells = self.begin[owners], self.cells
            lowest, highest = cells[begin + first].min(), cells[begin + last - 1].max()
            return int(lowest), int(highest)
        spans = zip(owners.tolist(), first.tolist(), last.tolist(), strict=True)
        bounds = [self.rows[owner].get_range(*span) for owner, *span in spans]
        lowests, highests = zip(*bounds, strict=True)
        return min(lowests), max(highests)

    def list_cells(self, owners: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Returns the cells of the tokens at indexes [first, last) of some sequences, one
        sequence after the other, and how many each has."""
        counts = np.maximum(last - first, 0)
        starts = self.begin[owners] + first - counts.cumsum() + counts
        at = np.repeat(starts, counts)
        at += np.arange(len(at))
        return self.cells[at], counts


class SequenceIndex:
    """The positions of one sequence, ascending, and the cell of each.

    Args:
        book: the indexes of all sequences.
        owner: number of the sequence.
    """

    def __init__(self, book: Indexes, owner: int) -> None:
        self.book, self.owner = book, owner

    def __len__(self) -> int:
        return self.book.end.item(self.owner) - self.book.begin.item(self.owner)

    def get_span(self) -> tuple[int, int]:
        """Returns which part of the arrays it uses."""
        return self.book.begin.item(self.owner), self.book.end.item(self.owner)

    @property
    def used(self) -> Ints:
        """[2, tokens], positions and cells."""
        begin, end = self.get_span()
        return self.book.arrays[:, begin:end]

    @property
    def positions(self) -> Ints:
        begin, end = self.get_span()
        return self.book.positions[begin:end]

    @property
    def cells(self) -> Ints:
        begin, end = self.get_span()
        return self.book.cells[begin:end]

    @property
    def first(self) -> int:
        return self.book.positions.item(self.book.begin.item(self.owner))

    @property
    def last(self) -> int:
        return self.book.positions.item(self.book.end.item(self.owner) - 1)

    @property
    def ascending(self) -> bool:
        return self.book.ascending.item(self.owner)

    @ascending.setter
    def ascending(self, ascending: bool) -> None:
        self.book.ascending[self.owner] = ascending

    def find(self, position: int) -> int:
        """Returns the index of the first token at or behind `position`."""
        (begin, end), positions = self.get_span(), self.book.positions
        if begin == end or position <= positions.item(begin):
            return 0
        if position > positions.item(end - 1):
            return end - begin
        return int(positions[begin:end].searchsorted(position))

    def get_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at [first, last)."""
        begin, cells = self.book.begin.item(self.owner), self.book.cells
        if self.ascending:
            return cells.item(begin + first), cells.item(begin + last - 1)
        return get_bounds(cells[begin + first : begin + last])

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
        added = self.book.arrays[:, end : end + count]
        added[0], added[1] = positions, cells
        self.book.end[self.owner] = end + count
        self.ascending = self.ascending or begin == end
        if end + count - begin == 1:
            return
        # Compare from the last old token on.
        since = self.book.arrays[:, max(begin, end - 1) : end + count]
        ordered, ascending = is_ascending(since[0]), is_ascending(since[1])
        self.ascending = self.ascending and ordered and ascending
        if not ordered:
            used = self.used
            used[:] = used[:, used[0].argsort(kind="stable")]

    def append(self, position: int, cell: int) -> None:
        """Adds one token; faster than `add`, which handles many."""
        book = self.book
        self.make_room(1)
        begin, end = self.get_span()
        if begin == end or position < book.positions.item(end - 1):
            self.add(np.array([position]), np.array([cell]))
            return
        if book.cells.item(end - 1) > cell:
            self.ascending = False
        book.positions[end], book.cells[end] = position, cell
        book.end[self.owner] = end + 1

    def make_room(self, count: int) -> None:
        """Makes room for more tokens: where evictions freed some at the begin, or in
        larger arrays."""
        book, (begin, end) = self.book, self.get_span()
        limit = book.limit.item(self.owner)
        if end + count <= limit:
            return
        needed = 2 * (end - begin + count)
        if needed > book.room:
            book.allocate(needed)
            return
        used, start = self.used.copy(), limit - book.room
        book.begin[self.owner], book.end[self.owner] = start, start + end - begin
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
        if begin + last < end:
            behind = book.arrays[:, begin + last : end].copy()
            book.arrays[:, begin + first : begin + first + behind.shape[1]] = behind
        book.end[owner] = end - (last - first)
        return cells

    def replace(self, other: SequenceIndex, count: int) -> None:
        """Becomes an index of the first `count` tokens of the other one."""
        self.cut(0, len(self))
        self.add(*other.used[:, :count])
