"""Where the tokens of one sequence are, in the order of their positions."""

from __future__ import annotations

import numpy as np

from impl.shared.batch import Ints


class Track:
    """The positions of one sequence, ascending, and the cell of each.

    Both live in arrays with room at either end: tokens come at the end and leave at the
    begin, and neither moves the rest.
    """

    def __init__(self) -> None:
        self.arrays = np.empty((2, 64), np.int64)  # positions, cells
        self.begin = self.end = 0

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
        return int(self.arrays[0, self.begin])

    @property
    def last(self) -> int:
        return int(self.arrays[0, self.end - 1])

    def find(self, position: int) -> int:
        """The index of the first token at `position` or behind it."""
        return int(self.positions.searchsorted(position))

    def add(self, positions: Ints, cells: Ints) -> None:
        """More tokens; they need not be the last, nor in order."""
        count = len(positions)
        self.make_room(count)
        new = self.arrays[:, self.end : self.end + count]
        new[0], new[1] = positions, cells
        self.end += count
        joint = max(self.begin, self.end - count - 1)
        tail = self.arrays[0, joint : self.end]
        if len(tail) > 1 and (tail[1:] < tail[:-1]).any():
            order = self.positions.argsort(kind="stable")
            self.arrays[:, self.begin : self.end] = self.arrays[:, self.begin + order]

    def make_room(self, count: int) -> None:
        if self.end + count <= self.arrays.shape[1]:
            return
        held = self.arrays[:, self.begin : self.end]
        room = max(64, 2 * (len(self) + count))
        # What was freed in front is used again before anything grows.
        arrays = (
            self.arrays if room <= self.arrays.shape[1] else np.empty((2, room), np.int64)
        )
        arrays[:, : len(self)] = held.copy()
        self.arrays, self.begin, self.end = arrays, 0, len(self)

    def cut(self, first: int, last: int) -> Ints:
        """Takes out the tokens with index [first, last); returns their cells."""
        cells = self.cells[first:last].copy()
        if first == 0:
            self.begin += last
        else:
            rest = self.arrays[:, self.begin + last : self.end].copy()
            self.end = self.begin + first + rest.shape[1]
            self.arrays[:, self.begin + first : self.end] = rest
        return cells

    def copy(self, count: int) -> Track:
        """The first `count` tokens."""
        other = Track()
        other.add(self.positions[:count], self.cells[:count])
        return other
