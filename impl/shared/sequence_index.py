"""Lists the cells of each sequence, in order of position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.impl.shared.batch import Ints, get_bounds, is_ascending, is_run

Places = Ints | slice
"""Numbers of cells; a slice if they are consecutive and ascending."""

ROOM = 64


class Indexes:
    """The tokens of all sequences: their positions, ascending, and the cell of each.

    All sequences share one array, so that a step of many sequences takes few operations.
    Each sequence has free space at both ends of its tokens: tokens are added at the end
    and evicted at the beginning without moving other tokens.

    Args:
        count: number of sequences.

    Attributes:
        arrays: int64 [2, sequences * room], positions and cells.
        positions, cells: the two rows of `arrays`.
        begin, end: int64 [sequences], the used range of each sequence in `arrays`.
        limit: int64 [sequences], the end of the space of each sequence.
        dense: bool [sequences]. True only if the positions of the sequence are
            consecutive; False if this is not known.
        ascending: bool [sequences]. True only if the cells of the sequence ascend; False
            if this is not known.
        rows: the index of each sequence.
    """

    def __init__(self, count: int) -> None:
        self.arrays = np.empty((2, 0), np.int64)
        self.begin = self.end = np.zeros(count, np.int64)
        self.dense, self.ascending = np.ones((2, count), np.bool_)
        self.rows = [SequenceIndex(self, owner) for owner in range(count)]
        self.allocate(ROOM)

    def allocate(self, room: int) -> None:
        """Allocates `room` tokens for each sequence, and copies the present tokens."""
        used = [index.used for index in self.rows]
        self.room, count = room, len(used)
        self.arrays = np.empty((2, count * room), np.int64)
        self.positions, self.cells = self.arrays
        lengths, self.begin = self.end - self.begin, np.arange(count) * room
        self.end, self.limit = self.begin + lengths, self.begin + room
        for index, tokens in zip(self.rows, used, strict=True):
            index.used[:] = tokens

    def __getitem__(self, owner: int) -> SequenceIndex:
        return self.rows[owner]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SequenceIndex]:
        return iter(self.rows)

    # --- many sequences, each once ------------------------------------------------------

    def append(self, owners: Ints, positions: Ints, cells: Ints) -> None:
        """Adds one token to each of the given sequences."""
        if len(owners) > 1 and self.append_next(owners, positions, cells):
            return
        tokens = zip(owners.tolist(), positions.tolist(), cells.tolist(), strict=True)
        for owner, position, cell in tokens:
            self.rows[owner].append(position, cell)

    def append_next(self, owners: Ints, positions: Ints, cells: Ints) -> bool:
        """Adds tokens like `append`, if each token is the next token of its sequence.

        Returns:
            False if a token is not the next token of its sequence; then no token is
            added.
        """
        end = self.end[owners]
        if np.count_nonzero(end == self.limit[owners]):
            for owner in owners.tolist():
                self.rows[owner].make_room(1)
            end = self.end[owners]
        # For an empty sequence, the entry at `last` is arbitrary: if it happens to match,
        # the token is still written to the right index.
        last = end - 1
        if np.count_nonzero(positions - self.positions[last] != 1):
            return False
        self.ascending[owners] &= self.cells[last] < cells
        self.positions[end], self.cells[end] = positions, cells
        self.end[owners] = end + 1
        return True

    def find(self, owners: Ints, positions: Ints) -> Ints:
        """Finds the first token of each sequence at or after each position.

        Args:
            owners: [sequences], each with at least one token.
            positions: [bounds, sequences].

        Returns:
            [bounds, sequences], the indexes of the tokens in `arrays`.
        """
        if len(owners) == 1:
            places = map(self.rows[owners.item(0)].find, positions[:, 0].tolist())
            return np.array([*places])[:, None]
        counts, sparse = self.count_from_first(owners, positions)
        for column in sparse:
            index = self.rows[owners.item(column)]
            counts[:, column] = [*map(index.find, positions[:, column].tolist())]
        return counts

    def count_from_first(
        self, owners: Ints, positions: Ints
    ) -> tuple[Ints, Sequence[int]]:
        """Finds tokens like `find`, under the assumption that all positions are
        consecutive.

        Returns:
            The result of `find` under this assumption, and the columns of sequences for
            which the assumption may be wrong.
        """
        begin = self.begin[owners]
        counts = np.maximum(positions + (begin - self.positions[begin]), begin)
        np.minimum(counts, self.end[owners], out=counts)
        dense = self.dense[owners]
        if np.count_nonzero(dense) == len(dense):
            return counts, ()
        return counts, (~dense).nonzero()[0].tolist()

    def get_range(self, owners: Ints, first: Ints, last: Ints) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at indexes [first, last).

        Args:
            owners: [sequences], the sequences.
            first, last: [sequences], the range of each sequence; not empty.
        """
        several = len(owners) > 1
        if several and np.count_nonzero(self.ascending[owners]) == len(owners):
            return self.cells[first].min().item(), self.cells[last - 1].max().item()
        spans = zip(owners.tolist(), first.tolist(), last.tolist(), strict=True)
        bounds = [self.rows[owner].get_range(*span) for owner, *span in spans]
        lowests, highests = zip(*bounds, strict=True)
        return min(lowests), max(highests)

    def list_cells(self, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Returns the cells of the tokens at indexes [first, last) of some sequences.

        Args:
            first, last: [sequences], the range of each sequence.

        Returns:
            The cells, concatenated in order of the sequences, and the number of cells of
            each sequence.
        """
        counts = np.maximum(last - first, 0)
        at = (first - counts.cumsum() + counts).repeat(counts)
        at += np.arange(len(at))
        return self.cells[at], counts


class SequenceIndex:
    """The positions of one sequence, ascending, and the cell of each.

    All indexes in this class refer to the arrays of all sequences.

    Args:
        book: the indexes of all sequences.
        owner: number of the sequence.
    """

    def __init__(self, book: Indexes, owner: int) -> None:
        self.book, self.owner = book, owner

    def __len__(self) -> int:
        return self.book.end.item(self.owner) - self.book.begin.item(self.owner)

    def get_span(self) -> tuple[int, int]:
        """Returns the used range of indexes, (begin, end)."""
        return self.book.begin.item(self.owner), self.book.end.item(self.owner)

    @property
    def used(self) -> Ints:
        """The positions and cells, a view [2, tokens]."""
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
    def dense(self) -> bool:
        return self.book.dense.item(self.owner)

    @dense.setter
    def dense(self, dense: bool) -> None:
        self.book.dense[self.owner] = dense

    @property
    def ascending(self) -> bool:
        return self.book.ascending.item(self.owner)

    @ascending.setter
    def ascending(self, ascending: bool) -> None:
        self.book.ascending[self.owner] = ascending

    def find(self, position: int) -> int:
        """Returns the index of the first token at or after `position`."""
        (begin, end), positions = self.get_span(), self.book.positions
        if begin == end or position <= positions.item(begin):
            return begin
        if position > positions.item(end - 1):
            return end
        if self.dense:
            return begin + position - positions.item(begin)
        return begin + int(positions[begin:end].searchsorted(position))

    def list_behind(self, position: int) -> Ints:
        """Returns the cells of the tokens at or after `position`."""
        return self.book.cells[self.find(position) : self.book.end.item(self.owner)]

    def get_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at [first, last)."""
        cells = self.book.cells
        if self.ascending:
            return cells.item(first), cells.item(last - 1)
        return get_bounds(cells[first:last])

    def locate(self, first: int, last: int) -> Places:
        """Returns the cells of the tokens at indexes [first, last).

        Consecutive cells are returned as a slice, without reading each cell.
        """
        if first >= last:
            return slice(0, 0)
        cells = self.book.cells
        if self.ascending:
            lowest = cells.item(first)
            if cells.item(last - 1) - lowest == last - first - 1:
                return slice(lowest, lowest + last - first)
        return cells[first:last]

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
        if end + count - begin == 1:
            return
        # Compare from the last old token on.
        since = self.book.arrays[:, max(begin, end - 1) : end + count]
        if not is_run(since[0]):
            self.dense = False
            if not is_ascending(since[0]):
                self.ascending = False
                used = self.used
                used[:] = used[:, used[0].argsort(kind="stable")]
                return
        if not is_ascending(since[1]):
            self.ascending = False

    def append(self, position: int, cell: int) -> None:
        """Adds one token. Faster than `add` if the token is the next token of the
        sequence."""
        book = self.book
        self.make_room(1)
        begin, end = self.get_span()
        if begin == end or position != book.positions.item(end - 1) + 1:
            self.add(np.array([position]), np.array([cell]))
            return
        if book.cells.item(end - 1) > cell:
            self.ascending = False
        book.positions[end], book.cells[end] = position, cell
        book.end[self.owner] = end + 1

    def make_room(self, count: int) -> None:
        """Makes space for `count` more tokens after the present tokens.

        Moves the tokens to the start of their space if evictions have freed enough of it;
        otherwise allocates larger arrays.
        """
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
        book, owner, (begin, end) = self.book, self.owner, self.get_span()
        cells = self.locate(first, last)
        if not isinstance(cells, slice):
            cells = cells.copy()
        if (first, last) == (begin, end):
            self.dense = self.ascending = True
        if first == begin:
            book.begin[owner] = last
            return cells
        if first < last < end:
            self.dense = False
            tail = book.arrays[:, last:end].copy()
            book.arrays[:, first : first + end - last] = tail
        book.end[owner] = end - (last - first)
        return cells

    def replace(self, tokens: Ints) -> None:
        """Replaces all tokens by `tokens`: positions and cells, [2, tokens]."""
        self.cut(*self.get_span())
        self.add(*tokens)
