"""Rotary position embedding of keys, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, sin

Vector = Sequence[float]


def compute_angle(position: float, pair: int, dim: int, base: float) -> float:
    """Returns the angle, in radians, by which a pair is rotated at a position.

    Args:
        position: the position.
        pair: number of the pair; the angle is largest for pair 0.
        dim: length of the vector.
        base: the base of the embedding.
    """
    return float(position * base ** (-2 * pair / dim))


def list_axes(sections: Sequence[int], pairs: int) -> list[int]:
    """Returns the axis by which each pair is rotated: 0 for t, 1 for y, 2 for x.

    Args:
        sections: number of pairs of each section; section i belongs to axis i mod 3.
            Empty if all pairs are rotated by the position.
        pairs: number of pairs.

    Raises:
        ValueError: the sections do not add up to `pairs`.
    """
    axes = [at % 3 for at, count in enumerate(sections or [pairs]) for _ in range(count)]
    if len(axes) != pairs:
        raise ValueError(
            f"sections {list(sections)} have {len(axes)} pairs, but a key has {pairs}"
        )
    return axes


def rotate(
    vector: Vector,
    position: float | Vector,
    base: float,
    sections: Sequence[int] = (),
) -> list[float]:
    """Rotates each pair (x[i], x[i + dim / 2]) of a vector by its angle at a position.

    A rotation by position a and then by position b equals a rotation by a + b.

    Args:
        vector: [dim], dim even
        position: the position; or the coordinates (t, y, x), if there are `sections`.
        base: the base of the embedding.
        sections: see `list_axes`.

    Returns:
        [dim]
    """
    half = len(vector) // 2
    turned = [0.0] * len(vector)
    coordinates = position if isinstance(position, Sequence) else [position]
    for pair, axis in enumerate(list_axes(sections, half)):
        angle = compute_angle(coordinates[axis], pair, len(vector), base)
        x, y = vector[pair], vector[pair + half]
        turned[pair] = x * cos(angle) - y * sin(angle)
        turned[pair + half] = x * sin(angle) + y * cos(angle)
    return turned
