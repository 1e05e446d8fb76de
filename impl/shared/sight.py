"""Which columns each row of a pass sees, without a look at every pair of them.

The rows of one sequence see nearly the same: all that stands before the first of them,
less what a window has left behind. So there is one line for each sequence, of what all
its rows see; rows are copies of it, which costs no more than writing them. Only the few
columns that some rows see and others do not are compared row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from impl.shared.batch import Ints, as_slice

Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Patch:
    """What some rows see of some columns. rows, columns: numbers; a slice for neighbours.
    seen: [rows, columns]."""

    rows: Ints | slice
    columns: Ints | slice
    seen: Seen


@dataclass(frozen=True)
class Sight:
    """seen: [lines, columns]. line: [rows], the line that each row is a copy of.
    patches: what differs from it."""

    seen: Seen
    line: Ints
    patches: tuple[Patch, ...]


def compute_sight(limits: Ints, positions: Ints, bits: Ints) -> Sight:
    """limits: [3, rows]: the bit of each row's sequence, and the first and the last
    position that it may see. positions, bits: [columns], of each cell; see
    `impl.shared.cells`."""
    _, low, high = limits
    owners, first, line = np.unique(limits[0], return_index=True, return_inverse=True)
    if len(owners) == len(line):  # nothing to copy
        own = find_seen(owners, low[first], high[first], positions, bits)
        return Sight(own, line, ())
    groups = [np.flatnonzero(line == number) for number in range(len(owners))]
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
    return Sight(seen, line, tuple(patches))


def find_seen(owners: Ints, low: Ints, high: Ints, positions: Ints, bits: Ints) -> Seen:
    """[owners, columns], whether the owner holds the cell, at a position between low and
    high. owners: ascending bits.

    Most cells are held by one sequence, so one line is all that they can be seen in.
    """
    if len(owners) == 1:
        holds = (bits & owners[0]) != 0
        return holds[None] & compare(positions, low, high)
    seen = np.zeros((len(owners), len(positions)), np.bool_)
    place = owners.searchsorted(bits)
    place[place == len(owners)] = 0
    alone = owners[place] == bits
    inside = alone & (positions >= low[place]) & (positions <= high[place])
    columns = np.flatnonzero(inside)
    seen[place[columns], columns] = True
    shared = np.flatnonzero(~alone & (bits != 0))
    if len(shared):
        holds = (bits[shared] & owners[:, None]) != 0
        seen[:, shared] = holds & compare(positions[shared], low, high)
    return seen


def compare(positions: Ints, low: Ints, high: Ints) -> Seen:
    """[rows, columns], whether the position of a column is between a row's low and high.
    low, high: [rows]."""
    lowest = positions.min()
    if len(high) > 1 and low.max() <= lowest and is_run(positions) and is_run(high):
        # A triangle: each row is the one above, moved. Copies take a tenth of the time.
        rows, columns = len(high), len(positions)
        line = np.arange(columns + rows - 1) <= high[-1] - lowest
        stretches = np.lib.stride_tricks.sliding_window_view(line, columns)
        return np.ascontiguousarray(stretches[::-1])
    seen: Seen = positions <= high[:, None]
    if low.max() > lowest:
        seen &= positions >= low[:, None]
    return seen


def is_run(numbers: Ints) -> bool:
    """Whether each is one more than the one before it."""
    return bool((numbers[1:] - numbers[:-1] == 1).all())
