"""Which columns each row of a pass sees, without a look at every pair of them.

Rows are stretches of one line, which costs no more than writing them. Where tokens and
rows follow each other, as in a long prompt, each row is the one above it, moved by one.
Else the rows of one sequence see nearly the same: all that stands before the first of
them, less what a window has left behind. So the line holds for each sequence what all its
rows see, and the few columns that some of them see and others do not are compared row by
row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.batch import Ints, as_slice

Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Patch:
    """A part of a mask: some rows, and which of some columns they see.

    rows, columns: numbers, or a slice where they are neighbours. seen: [rows, columns].
    """

    rows: Ints | slice
    columns: Ints | slice
    seen: Seen


@dataclass(frozen=True)
class MaskLine:
    """line: what is seen, in a row of numbers; each row of the mask is a stretch of it.
    begins: [rows], where in the line it begins. patches: what differs from it."""

    line: Seen
    begins: Ints
    patches: tuple[Patch, ...] = ()


def see(limits: Ints, positions: Ints, bits: Ints, rows: int) -> Seen:
    """[rows, columns], each pair of them compared; rows behind those of the limits see
    nothing. The other arguments as of `compute_mask_line`."""
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
    """limits: [3, rows]: the bit of each row's sequence, and the first and the last
    position that it may see. positions, bits: [columns], of each cell; see
    `impl.shared.cells`."""
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
        owners, first, place = np.unique(owner, return_index=True, return_inverse=True)
        begins = place * len(positions)
        if len(owners) == len(place):  # a row each: nothing differs
            own = find_seen(owners, low[first], high[first], positions, bits)
            return MaskLine(own.ravel(), begins)
        groups = [np.flatnonzero(place == number) for number in range(len(owners))]
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
    """For cells that all are the rows' own; None if row or column do not follow the one
    before."""
    first, rows = positions[0], len(high)
    slides = low.max() > first  # a window has left the first column behind
    if not (is_run(positions) and is_run(high) and (is_run(low) or not slides)):
        return None
    ahead = np.arange(1 - rows, len(positions)) + first  # of a column, in the first row
    line = ahead <= high[0]
    if slides:
        line &= ahead >= low[0]
    return MaskLine(line, np.arange(rows)[::-1].copy())


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
    seen: Seen = positions <= high[:, None]
    if low.max() > 0:
        seen &= positions >= low[:, None]
    return seen


def is_run(numbers: Ints) -> bool:
    """Whether each is one more than the one before it."""
    return bool((numbers[1:] - numbers[:-1] == 1).all())
