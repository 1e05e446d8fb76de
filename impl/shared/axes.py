"""Positions of three axes, as in Qwen-VL, in one number that keeps their order.

The coordinates of a token are (t, y, x); t is its position. The number has t in its high
digits, then y - t and x - t, each increased by HALF so that it is not negative. A larger
number is a later token in the order (t, y, x), and a token that moves by some positions
moves by as many units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.errors import MisuseError

BITS = 18
HALF = 1 << BITS - 1
UNIT = 1 << 2 * BITS
"""The distance of the numbers of two adjacent positions."""

MOST = 1 << 25
"""Positions must be below this number."""


def pack(positions: Ints, coordinates: Sequence[Sequence[int]]) -> Ints:
    """Returns the number of each token.

    Args:
        positions: [tokens], t of each token.
        coordinates: (y, x) of each token; empty if all are text, where y = x = t.

    Raises:
        MisuseError: there is not one pair for each token, or a number is out of range.
    """
    pairs = [*map(tuple, coordinates)] or [(at, at) for at in positions.tolist()]
    if [len(pair) for pair in pairs] != [2] * len(positions):
        raise MisuseError(
            f"coordinates must be {len(positions)} pairs (y, x), one for each row, but"
            f" are {pairs}"
        )
    yx = np.array(pairs, np.int64).T
    offsets = yx - positions + HALF
    if np.count_nonzero(yx < 0):
        raise MisuseError(f"coordinate {yx.min()} is negative")
    if offsets.min() < 0 or offsets.max() >= 2 * HALF or positions.max() >= MOST:
        raise MisuseError(
            f"positions must be below {MOST}, and coordinates less than {HALF} from them"
        )
    packed: Ints = positions * UNIT + offsets[0] * (2 * HALF) + offsets[1]
    return packed


def get_end(numbers: Ints) -> int:
    """Returns 1 + the largest coordinate of at least one token."""
    largest = np.maximum(get_offsets(numbers).max(axis=0), 0)
    return int((numbers // UNIT + largest).max()) + 1


def get_offsets(numbers: Ints) -> Ints:
    """Returns how far y and x of each token are from its position, [2, tokens]."""
    y, x = np.divmod(numbers % UNIT, 2 * HALF)
    return np.stack((y, x)) - HALF


def check_sections(sections: Sequence[int] | None, key_dim: int) -> None:
    """Raises MisuseError if the sections do not have all pairs of a key."""
    if sections and sum(sections) * 2 != key_dim:
        raise MisuseError(
            f"sections {list(sections)} have {sum(sections)} pairs, but a key with"
            f" key_dim {key_dim} has {key_dim / 2:g}"
        )
