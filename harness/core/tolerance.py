"""The one table of tolerances. Moving data is exact; only computed numbers stand here."""

from math import sqrt

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The unit roundoff of each storage dtype."""


def get_attention_tolerance(
    dtype: str, dim: int, tokens: int, storage: float = 0.0
) -> float:
    """The largest error of one number of softmax(q · k / sqrt(dim)) · v.

    All numbers of q, k and v are below 1. A score is a sum of `dim` products, so its
    error is at most (dim + 2) · u · sqrt(dim); the relative error of each weight is about
    twice that of its score; weights sum to 1, and summing `tokens` of them adds
    (tokens + 2) · u. `storage` is the error of a stored number that a backend with
    inexact storage declares: it enters a score `dim` times and the result once.
    """
    unit = UNIT[dtype]
    score = (dim + 2) * unit * sqrt(dim) + storage * sqrt(dim)
    return 2 * score + (tokens + 2) * unit + storage


def get_key_tolerance(dtype: str, turns: int, distance: int) -> float:
    """The largest error of one number of a key that was rotated to other positions.

    turns: how often; distance: by how many positions in all. No pair of a key is longer
    than sqrt(2), so when it is stored one number is off by u of the dtype at most, and
    the other by u / 2: together less than 1.12 · u, in any direction once it is turned.
    That happens once for each turn, and u is added by the last store. Turning itself is
    computed in float32: the angle is off by 2 · u of `distance` at most (a product of two
    rounded numbers), sine, cosine and the two products by a few u each turn.
    """
    stored = (1.12 * turns + 1) * UNIT[dtype]
    computed = 2 * (2 * distance + 8 * turns) * UNIT["float32"]
    return stored + computed
