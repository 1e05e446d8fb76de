"""Positions of three axes, as in Qwen-VL, in one number that keeps their order.

The coordinates of a token are (t, y, x); t is its position. The number has t in its high
digits, then y - t and x - t, each increased by MOST so that it is not negative. A larger
number is a later token in the order (t, y, x), and a token that moves by some positions
moves by as many units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.errors import MisuseError

MOST = 1 << 20
"""All coordinates are less than this number."""

UNIT = (2 * MOST) ** 2
"""The distance of the numbers of two adjacent positions."""


def pack(positions: Ints, coordinates: Sequence[Sequence[int]]) -> Ints:
    """Returns the number of each token.

    Args:
        positions: [tokens], t of each token, at least one.
        coordinates: (y, x) of each token; empty if all are text, where y = x = t.

    Raises:
        MisuseError: there is not one pair for each token, or a number is out of range.
    """
    pairs = [*map(tuple, coordinates)] or [(at, at) for at in positions.tolist()]
    if [len(pair) for pair in pairs] != [2] * len(positions):
        rows = f"{len(positions)} pairs (y, x), one for each row"
        raise MisuseError(f"coordinates must be {rows}, but are {pairs}")
    yx = np.array(pairs, np.int64).T
    for number in yx.min(), yx.max(), positions.max():
        if not 0 <= number < MOST:
            raise MisuseError(f"coordinate {number} is not in 0 … {MOST - 1}")
    y, x = yx - positions + MOST
    packed: Ints = positions * UNIT + y * (2 * MOST) + x
    return packed


def get_offsets(numbers: Ints) -> Ints:
    """Returns how far y and x of each token are from its position, [2, tokens]."""
    return np.stack(np.divmod(numbers % UNIT, 2 * MOST)) - MOST


def get_end(numbers: Ints) -> int:
    """Returns 1 + the largest coordinate of at least one token."""
    return int((numbers // UNIT + get_offsets(numbers).max(0, initial=0)).max()) + 1
