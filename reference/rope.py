"""Rotary position embedding: what a key at a position looks like."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, sin

Vector = Sequence[float]


def compute_angle(position: float, pair: int, dim: int, base: float) -> float:
    """By how much the pair number `pair` of a vector of `dim` numbers turns at
    `position`, in radians: the first pair fastest, each later one slower."""
    return float(position * base ** (-2 * pair / dim))


def rotate(vector: Vector, position: float, base: float) -> list[float]:
    """The vector of even length, each of its pairs (x[i], x[i + dim / 2]) turned by its
    angle at `position`. Turning by a and then by b is turning by a + b."""
    half = len(vector) // 2
    turned = [0.0] * len(vector)
    for pair in range(half):
        angle = compute_angle(position, pair, len(vector), base)
        x, y = vector[pair], vector[pair + half]
        turned[pair] = x * cos(angle) - y * sin(angle)
        turned[pair + half] = x * sin(angle) + y * cos(angle)
    return turned
