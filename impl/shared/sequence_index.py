"""The cells of one sequence, in order of position."""

from __future__ import annotations

import numpy as np

from lockstep.impl.shared.batch import Ints, get_bounds, is_ascending


class SequenceIndex:
    """The positions of one sequence, ascending, and the cell of each.

    Both are arrays with room at either end: tokens are added at the end and evicted at
    the begin, and neither moves the others.

    Attributes:
        arrays: int64 [2, room], positions and cells; used are the indexes [begin, end).
        ascending: if True, the cells ascend too; if False, they may or may not.
    """

    def __init__(self) -> None:
        self.arrays = np.empty((2, 64), np.int64)  # positions, cells
        self.begin = self.end = 0
        self.ascending = True  # True: the cells too; False: unknown

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def positions(self) -> Ints:
        return self.arrays[0, self.begin : self.end]

    @property
    def cells(self) -> Ints:
        return self.arrays[1, self.begin : self.end]

    @property
    def first(self) -> int:
        return int(self.arrays.item(0, self.begin))

    @property
    def last(self) -> int:
        return int(self.arrays.item(0, self.end - 1))

    def find(self, position: int) -> int:
        """Returns the index of the first token at or behind `position`."""
        arrays, begin, end = self.arrays, self.begin, self.end
        if begin == end or position <= arrays.item(0, begin):
            return 0
        if position > arrays.item(0, end - 1):
            return end - begin
        return int(arrays[0, begin:end].searchsorted(position))

    def get_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns the lowest and the highest cell of the tokens at [first, last)."""
        first, last = self.begin + first, self.begin + last
        if self.ascending:
            return int(self.arrays.item(1, first)), int(self.arrays.item(1, last - 1))
        return get_bounds(self.arrays[1, first:last])

    def add(self, positions: Ints, cells: Ints) -> None:
        """Adds tokens, in any order and at any position."""
        count = len(positions)
        if not count:
            return
        self.make_room(count)
        self.ascending = self.ascending or not len(self)
        begin, end = self.end, self.end + count
        self.arrays[0, begin:end], self.arrays[1, begin:end] = positions, cells
        self.end = end
        if end - self.begin == 1:
            return
        # Compare from the last old token on.
        since = self.arrays[:, max(self.begin, begin - 1) : end]
        ordered, ascending = is_ascending(since[0]), is_ascending(since[1])
        self.ascending = self.ascending and ordered and ascending
        if not ordered:
            order = self.positions.argsort(kind="stable")
            self.arrays[:, self.begin : self.end] = self.arrays[:, self.begin + order]

    def append(self, position: int, cell: int) -> None:
        """Adds one token; faster than `add`, which handles many."""
        if self.begin == self.end or position < self.last:
            self.add(np.array([position]), np.array([cell]))
            return
        self.make_room(1)
        end, self.end = self.end, self.end + 1
        self.ascending = self.ascending and self.arrays.item(1, end - 1) < cell
        self.arrays[0, end], self.arrays[1, end] = position, cell

    def make_room(self, count: int) -> None:
        if self.end + count <= self.arrays.shape[1]:
            return
        held = self.arrays[:, self.begin : self.end]
        room = max(64, 2 * (len(self) + count))
        # Reuse the room that evictions freed in front before growing.
        arrays = (
            self.arrays if room <= self.arrays.shape[1] else np.empty((2, room), np.int64)
        )
        arrays[:, : len(self)] = held.copy()
        self.arrays, self.begin, self.end = arrays, 0, len(self)

    def cut(self, first: int, last: int) -> Ints:
        """Removes the tokens at indexes [first, last) and returns their cells."""
        cells = self.cells[first:last].copy()
        if first == 0:
            self.begin += last
        else:
            rest = self.arrays[:, self.begin + last : self.end].copy()
            self.end = self.begin + first + rest.shape[1]
            self.arrays[:, self.begin + first : self.end] = rest
        return cells

    def copy(self, count: int) -> SequenceIndex:
        """Returns an index of the first `count` tokens."""
        other = SequenceIndex()
        other.add(self.positions[:count], self.cells[:count])
        return other
