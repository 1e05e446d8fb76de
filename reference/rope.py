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


def rotate(vector: Vector, position: float, base: float) -> list[float]:
    """Rotates each pair (x[i], x[i + dim / 2]) of a vector by its angle at a position.

    A rotation by position a and then by position b equals a rotation by a + b.

    Args:
        vector: [dim], dim even
        position: the position.
        base: the base of the embedding.

    Returns:
        [dim]
    """
    half = len(vector) // 2
    turned = [0.0] * len(vector)
    for pair in range(half):
        angle = compute_angle(position, pair, len(vector), base)
        x, y = vector[pair], vector[pair + half]
        turned[pair] = x * cos(angle) - y * sin(angle)
        turned[pair + half] = x * sin(angle) + y * cos(angle)
    return turned
