"""The visible columns of each row of a pass, without comparing every pair.

Each row of the mask is a slice of one line, so that a row costs no more than a copy.

In a long prompt, rows and tokens are consecutive, and each row is the one above it
shifted by one column. In other passes the rows of one sequence see nearly the same: all
tokens before the first row, less those that have left the window. The line then holds,
for each sequence, the columns that all its rows see. The few columns that only some of
its rows see are compared row by row, in a patch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.batch import Ints, as_slice

Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Patch:
    """A part of a mask that differs from the line.

    Attributes:
        rows, columns: numbers, or a slice if they are consecutive.
        seen: [rows, columns], whether the row sees the column.
    """

    rows: Ints | slice
    columns: Ints | slice
    seen: Seen


@dataclass(frozen=True)
class MaskLine:
    """A mask whose rows are slices of one line.

    Attributes:
        line: visibility, one-dimensional.
        begins: [rows], index in `line` of the first column of each row.
        patches: the parts that differ from the line.
    """

    line: Seen
    begins: Ints
    patches: tuple[Patch, ...] = ()


def see(limits: Ints, positions: Ints, bits: Ints, rows: int) -> Seen:
    """Compares every row with every column.

    Args:
        limits, positions, bits: as in `compute_mask_line`.
        rows: number of rows of the result; those behind the limits see nothing.

    Returns:
        [rows, columns], whether the row sees the column.
    """
    owner, low, high = limits[:, :, None]  # each [rows, 1]
    seen: Seen = (bits & owner) != 0
    seen &= positions >= low
    seen &= positions <= high
    if rows > len(seen):
        padded = np.zeros((rows, seen.shape[1]), np.bool_)
        padded[: len(seen)] = seen
        return padded
    return seen


def compute_mask_line(limits: Ints, positions: Ints, bits: Ints) -> MaskLine:
    """Computes which columns each row sees.

    Args:
        limits: [3, rows], the bit of each row's sequence, and the first and the last
            position that it may see.
        positions, bits: [columns], of each cell; see `impl.shared.cells`.
    """
    owner, low, high = limits
    if len(owner) == 1:
        return MaskLine(find_seen(owner, low, high, positions, bits)[0], np.zeros(1, int))
    if (owner == owner[0]).all():
        if (bits & owner[0]).all():
            band = compute_band(positions, low, high)
            if band is not None:
                return band
        owners, begins = owner[:1], np.zeros(len(owner), int)
        groups = [np.arange(len(owner))]
    else:
        owners, first, inverse = np.unique(owner, return_index=True, return_inverse=True)
        begins = inverse * len(positions)
        if len(owners) == len(inverse):  # one row each: nothing differs
            own = find_seen(owners, low[first], high[first], positions, bits)
            return MaskLine(own.ravel(), begins)
        groups = [np.flatnonzero(inverse == number) for number in range(len(owners))]
    lows = np.array([(low[rows].min(), low[rows].max()) for rows in groups])
    highs = np.array([(high[rows].min(), high[rows].max()) for rows in groups])
    seen = find_seen(owners, lows[:, 1], highs[:, 0], positions, bits)
    differs = find_seen(owners, lows[:, 0], highs[:, 1], positions, bits) & ~seen
    patches = []
    for rows, some in zip(groups, differs, strict=True):
        columns = np.flatnonzero(some)
        if len(columns):
            part = compare(positions[columns], low[rows], high[rows])
            patches.append(Patch(as_slice(rows), as_slice(columns), part))
    return MaskLine(seen.ravel(), begins, tuple(patches))


def compute_band(positions: Ints, low: Ints, high: Ints) -> MaskLine | None:
    """Returns the mask of consecutive rows over consecutive cells of their own sequence;
    None if rows or cells are not consecutive."""
    first, rows = positions[0], len(high)
    slides = low.max() > first  # the first column has left a window
    if not (is_run(positions) and is_run(high) and (is_run(low) or not slides)):
        return None
    ahead = np.arange(1 - rows, len(positions)) + first  # positions, for row 0
    line = ahead <= high[0]
    if slides:
        line &= ahead >= low[0]
    return MaskLine(line, np.arange(rows)[::-1].copy())


def find_seen(owners: Ints, low: Ints, high: Ints, positions: Ints, bits: Ints) -> Seen:
    """Compares sequences with columns.

    Most cells are held by one sequence; only shared cells are compared with each owner.

    Args:
        owners: bits of the sequences, ascending.
        low, high: [owners], the first and the last position to find.
        positions, bits: [columns], of each cell.

    Returns:
        [owners, columns], whether the owner holds the cell at a position in [low, high].
    """
    if len(owners) == 1:
        holds = (bits & owners[0]) != 0
        return holds[None] & compare(positions, low, high)
    seen = np.zeros((len(owners), len(positions)), np.bool_)
    owner_index = owners.searchsorted(bits)
    owner_index[owner_index == len(owners)] = 0
    alone = owners[owner_index] == bits
    inside = alone & (positions >= low[owner_index]) & (positions <= high[owner_index])
    columns = np.flatnonzero(inside)
    seen[owner_index[columns], columns] = True
    shared = np.flatnonzero(~alone & (bits != 0))
    if len(shared):
        holds = (bits[shared] & owners[:, None]) != 0
        seen[:, shared] = holds & compare(positions[shared], low, high)
    return seen


def compare(positions: Ints, low: Ints, high: Ints) -> Seen:
    """Returns [rows, columns], whether the position of a column is in [low, high] of a
    row."""
    seen: Seen = positions <= high[:, None]
    if low.max() > 0:
        seen &= positions >= low[:, None]
    return seen


def is_run(numbers: Ints) -> bool:
    """Returns whether each number is one more than the one before it."""
    return bool((numbers[1:] - numbers[:-1] == 1).all())
