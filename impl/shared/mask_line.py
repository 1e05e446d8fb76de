"""Computes the mask of a pass without comparing every row with every column.

The tokens of a sequence are in order of position, so a row sees one range of them. The
mask is computed from the cells in this range, so the cost does not depend on the number
of cells in the pool.

Each row of the mask is a slice of one array, the *line*; a row therefore costs no more
than a copy. There are two cases:

* In a long prompt, rows and tokens are consecutive. Each row is the previous row, shifted
  by one column: a *band*.
* In other passes, the rows of one sequence see nearly the same tokens. The line contains,
  for each sequence, the columns that all its rows see. The few columns that only some of
  its rows see are compared row by row, and stored in *patches*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.batch import Ints, PassRows, as_slice, get_bounds, is_run
from lockstep.impl.shared.sequence_index import Indexes, Places

Seen = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
"""Numbers of a mask: 0 where a row sees a column, else a value or bits of -inf."""


@dataclass(frozen=True)
class Patch:
    """A part of a mask that differs from the line.

    Attributes:
        rows, columns: row and column numbers, or slices if they are consecutive.
        seen: [rows, columns], whether the row sees the column.
    """

    rows: Ints | slice
    columns: Ints | slice
    seen: Seen

    def get_place(self) -> tuple[Ints | slice, Ints | slice]:
        """Returns the index of the patch in a mask."""
        if isinstance(self.rows, slice) or isinstance(self.columns, slice):
            return self.rows, self.columns
        return self.rows[:, None], self.columns


@dataclass(frozen=True)
class MaskLine:
    """A mask whose rows are slices of one line.

    Attributes:
        line: one-dimensional.
        begins: [rows], index in `line` of the first column of each row.
        patches: the parts that differ from the line.
        is_band: whether each row is the previous row, shifted by one column, and the line
            ends with the first row.
    """

    line: Numbers
    begins: Ints
    patches: tuple[Patch, ...] = ()
    is_band: bool = False


class Sight(NamedTuple):
    """The tokens that the rows of a pass see, valid until its cells change.

    Attributes:
        batch: the rows.
        limits: int64 [2, rows], for each row the visible range of positions, [first,
            end).
        indexes: the tokens of all sequences.
        owners: int64 [sequences], the sequences of the batch, in the order of its groups.
        ranges: four arrays int64 [sequences] of places in the arrays of `indexes`. Every
            token that at least one row of the sequence sees is in [ranges[0], ranges[3]).
            Every row of the sequence sees all tokens in [ranges[1], ranges[2]).
    """

    batch: PassRows
    limits: Ints
    indexes: Indexes
    owners: Ints
    ranges: tuple[Ints, ...]

    @classmethod
    def find(cls, batch: PassRows, limits: Ints, indexes: Indexes) -> Sight:
        if batch.is_step:  # one row of each: what some see, all see
            owners = batch.sequences
            first, last = indexes.find(owners, limits)
            return cls(batch, limits, indexes, owners, (first, first, last, last))
        owners = np.array(batch.owners)
        ranges = indexes.find(owners, compute_bounds(batch, limits))
        return cls(batch, limits, indexes, owners, tuple(ranges))

    def get_cells(self) -> tuple[int, int]:
        """Returns the lowest and the highest cell of all tokens between the first and the
        last token that a row sees."""
        return self.indexes.get_range(self.owners, self.ranges[0], self.ranges[3])

    def paint(self, lines: Numbers, first: int) -> None:
        """Writes 0 to the columns that all rows of a sequence see.

        Args:
            lines: [at least sequences, columns], contiguous, one line for each sequence.
            first: the cell of column 0.
        """
        begin, end = self.ranges[1], self.ranges[2]
        if len(self.owners) == 1:
            index = self.indexes[self.owners.item(0)]
            cells = index.locate(begin.item(0), end.item(0))
            lines[0, shift(cells, first)] = 0
            return
        cells, counts = self.indexes.list_cells(begin, end)
        starts = np.arange(len(counts)) * lines.shape[1] - first
        cells += starts.repeat(counts)
        lines.reshape(-1)[cells] = 0

    def paint_each(self, numbers: Numbers, first: int, either: Numbers) -> None:
        """Writes the columns that only some rows of a sequence see.

        Args:
            numbers: [at least rows, columns].
            first: the cell of column 0.
            either: the numbers for hidden and for visible cells.
        """
        for patch in self.list_patches(first, whole=True):
            numbers[patch.get_place()] = either.take(patch.seen)

    def compute_line(
        self, first: int, width: int, rows: int, unseen: np.generic
    ) -> MaskLine:
        """Computes a mask [rows, width].

        Args:
            first: the cell of column 0.
            width: number of columns.
            rows: number of rows; rows after the rows of the batch see nothing.
            unseen: the number for hidden cells.
        """
        band = self.compute_band(first, width, rows, unseen)
        if band is not None:
            return band
        # Padding rows use a line after the lines of the sequences.
        lines = np.full((len(self.owners) + 1, width), unseen)
        self.paint(lines, first)
        begins = np.full(rows, len(self.owners) * width)
        for number, rows_of_owner in enumerate(self.batch.groups.values()):
            begins[: len(self.batch)][rows_of_owner] = number * width
        return MaskLine(lines.reshape(-1), begins, tuple(self.list_patches(first)))

    def compute_band(
        self, first: int, width: int, rows: int, unseen: np.generic
    ) -> MaskLine | None:
        """Returns the mask as a band; None if rows or cells are not consecutive."""
        if len(self.owners) > 1:
            return None
        index = self.indexes[self.owners.item(0)]
        least, most = self.ranges[0].item(), self.ranges[3].item()
        cells = index.locate(least, most)
        if not isinstance(cells, slice):
            return None
        low, high = self.limits
        positions = self.indexes.positions[least:most]
        ends = positions.searchsorted(high)
        if not is_run(ends):
            return None
        count, begin = len(high), cells.start - first
        if low.max() > positions[0]:  # the first column has left a window
            begins = positions.searchsorted(low)
            if not is_run(begins):
                return None
            begin += begins.item(0) + count - 1
        elif begin:
            return None
        # Padding rows use a range of the line after the range of the first row.
        line = np.full(width + count - 1 + (width if rows > count else 0), unseen)
        line[begin : cells.start - first + ends.item(0) + count - 1] = 0
        starts = np.arange(count - 1, count - 1 - rows, -1)
        starts[count:] = width + count - 1
        return MaskLine(line, starts, is_band=True)

    def list_patches(self, first: int, whole: bool = False) -> Iterator[Patch]:
        """Yields patches with the columns that only some rows of a sequence see.

        Args:
            first: the cell of column 0.
            whole: whether a patch also contains the columns that all rows of a sequence
                see.
        """
        low, high = self.limits
        groups = self.batch.groups.items()
        ranges = (places.tolist() for places in self.ranges)
        for (owner, rows), *places in zip(groups, *ranges, strict=True):
            least, begin, end, most = places
            index = self.indexes[owner]
            for span in ((least, most),) if whole else ((least, begin), (end, most)):
                if span[0] < span[1]:
                    columns = shift(index.locate(*span), first)
                    positions = self.indexes.positions[slice(*span)]
                    seen = compare(positions, low[rows], high[rows])
                    numbers = rows if isinstance(rows, slice) else as_slice(rows)
                    yield Patch(numbers, columns, seen)


def compute_bounds(batch: PassRows, limits: Ints) -> Ints:
    """Returns the bounds of the visible ranges of each sequence's rows.

    Returns:
        [4, sequences]: the lowest and the highest begin of a range, and the lowest and
        the highest end.
    """
    groups = [limits[:, rows] for rows in batch.groups.values()]
    bounds = [(*get_bounds(first), *get_bounds(end)) for first, end in groups]
    return np.array(bounds, np.int64).T


def shift(cells: Places, first: int) -> Places:
    """Converts cells to columns; the cell `first` is column 0."""
    if isinstance(cells, slice):
        return slice(cells.start - first, cells.stop - first)
    return cells - first


def compare(positions: Ints, low: Ints, high: Ints) -> Seen:
    """Returns whether the position of each column is in the row's range [low, high).

    Args:
        positions: [columns].
        low, high: [rows].

    Returns:
        bool [rows, columns].
    """
    seen: Seen = positions < high[:, None]
    if low.max() > 0:
        seen &= positions >= low[:, None]
    return seen
