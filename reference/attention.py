"""Softmax attention for one query, in double precision."""

from collections.abc import Sequence
from math import exp, fsum, sqrt

Vector = Sequence[float]


def compute_attention(
    query: Vector, keys: Sequence[Vector], values: Sequence[Vector]
) -> list[float]:
    """Computes softmax(query · keys / sqrt(key_dim)) · values.

    Args:
        query: [key_dim]
        keys: [tokens][key_dim], tokens ≥ 1
        values: [tokens][value_dim]

    Returns:
        [value_dim]
    """
    scale = 1 / sqrt(len(query))
    scores = [scale * compute_dot(query, key) for key in keys]
    largest = max(scores)  # subtracted: the result is the same, and exp cannot overflow
    weights = [exp(score - largest) for score in scores]
    total = fsum(weights)
    dimensions = zip(*values, strict=True)
    return [compute_dot(weights, dimension) / total for dimension in dimensions]


def compute_dot(first: Vector, second: Vector) -> float:
    return fsum(a * b for a, b in zip(first, second, strict=True))
