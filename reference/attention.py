"""Softmax attention for one query, in double precision."""

from collections.abc import Sequence
from math import exp, fsum, sqrt

Vector = Sequence[float]


def compute_attention(
    query: Vector, keys: Sequence[Vector], values: Sequence[Vector]
) -> list[float]:
    """softmax(query · keys / sqrt(dim)) · values.

    query: [key_dim]; keys: [tokens][key_dim]; values: [tokens][value_dim], tokens ≥ 1;
    returns [value_dim]. The largest score is subtracted first, which changes nothing in
    the result and keeps exp within range.
    """
    scale = 1 / sqrt(len(query))
    scores = [scale * compute_dot(query, key) for key in keys]
    largest = max(scores)
    weights = [exp(score - largest) for score in scores]
    total = fsum(weights)
    dimensions = zip(*values, strict=True)
    return [compute_dot(weights, dimension) / total for dimension in dimensions]


def compute_dot(left: Vector, right: Vector) -> float:
    return fsum(a * b for a, b in zip(left, right, strict=True))
