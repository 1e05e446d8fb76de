"""Describes columns of K and V that do not contain exactly one token."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.harness.core.payload import F32, Table, are_same

MIXED = "key of"
"""The prefix for a column with the key of one token and the value of another token."""

DRIFTED = ("K of token", "V of token")
"""The prefixes for a column whose numbers are close to the numbers of a token."""

SENTENCES = (MIXED, *DRIFTED)
"""The prefixes of descriptions that are complete messages."""

PADDING = "pad"
"""The prefix for a column with the payload of batch padding; row and column follow, as in
"pad 0.3"."""


class Drift(NamedTuple):
    """Vectors that are close to a token's vectors, but not equal.

    Attributes:
        tag: the tag of the token.
        off: the largest error: 0 if only signs of zeros differ, infinite if NaN or an
            infinite number differs.
        numbers: the text from `compare_numbers`.
    """

    tag: int
    off: float
    numbers: str


Name = int | str | Drift
"""The content of vectors: a token's tag, a description, or a drift from a token."""


def format_tag(token: Any) -> str:
    """Formats a tag as "token 3"; other contents are texts."""
    return f"token {token}" if isinstance(token, int) else str(token)


def name_drift(key: Name, value: Name) -> tuple[str, Drift] | None:
    """Returns "K" or "V", whichever differs more, if both are close to the same token.

    Returns None if K and V are equal to the token, or if they belong to different tokens.
    """
    named = ("K", key), ("V", value)
    drifts = [(array, name) for array, name in named if isinstance(name, Drift)]
    tags = {name.tag if isinstance(name, Drift) else name for _, name in named}
    if not drifts or len(tags - {NO_VECTORS}) > 1:
        return None
    return max(drifts, key=lambda drift: drift[1].off)


def format_drift(name: str, drift: Drift) -> str:
    differs = f"is off by {drift.off:.2g}" if 0 < drift.off < inf else "differs"
    return f"{name} of token {drift.tag} {differs} ({drift.numbers})"


def measure_errors(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the error of each number: -1 for an equal number, infinite if only one of
    the two numbers is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):  # of special numbers
        errors = np.nan_to_num(np.abs(got - expected), nan=np.inf, posinf=np.inf)
    return np.where(are_same(got, expected), -1, errors)


def compare_numbers(got: F32, expected: F32, heads: int | None = None) -> str:
    """Formats the two numbers that differ most, and the count of unequal numbers.

    Args:
        heads: the axis of heads, if the last axis is the axis of dimensions. The text
        then names the head and the dimension of the number.
    """
    got, expected = np.broadcast_arrays(got, expected)
    errors = measure_errors(got, expected)
    at = np.unravel_index(int(errors.argmax()), errors.shape)
    differ = int((errors >= 0).sum())
    position = "" if heads is None else f" in head {at[heads]}, dimension {at[-1]}"
    return (
        f"got {float(got[at]):.6g}, expected {float(expected[at]):.6g}{position};"
        f" {differ} of {got.size} numbers differ"
    )


def format_vectors(name: Name) -> str:
    """Formats the result of `name_vectors`."""
    if isinstance(name, int):
        return f"token {name}"
    if isinstance(name, Drift):
        return f"token {name.tag} off by {name.off:.2g}"
    return "all zeros" if name == "zeros" else str(name)


NEAR_TOKEN = 1 / 8
"""Vectors are close to a token if each number's error is smaller than this. Two digits of
a payload differ by this distance; with 4-bit storage they differ by half of it."""

NO_VECTORS = "nothing"
NO_TOKEN = "no token"

UNSTORED = ("NaN", "zeros", NO_VECTORS)
"""Names of contents that are not inexact vectors of a token."""


def measure_drift(vectors: F32, table: Table, tag: int | None = None) -> Drift:
    """Returns how far vectors are from the vectors of a token. If `tag` is None, compares
    with the nearest token."""
    if tag is None:
        tag = int(measure_distances(vectors, table).argmin())
    expected = table.vectors[:, :, tag : tag + 1]
    off = float(measure_errors(vectors, expected).max())
    return Drift(tag, off, compare_numbers(vectors, expected, heads=1))


def measure_distances(vectors: F32, table: Table) -> F32:
    """Returns the largest error of the ordinary numbers for each tag, [tags]."""
    ordinary = slice(table.ordinary)
    errors = np.abs(vectors[..., ordinary] - table.vectors[..., ordinary])
    distances: F32 = errors.max((0, 1, 3))
    return distances


def name_vectors(vectors: F32, table: Table) -> Name:
    """Identifies vectors by all heads: returns a tag, a drift, or a description."""
    if table.dim == 0:
        return NO_VECTORS
    if np.isnan(vectors[..., : table.ordinary]).any():
        return "NaN"
    tags = table.read_tags(vectors)
    matches = table.match(vectors, tags)
    if matches.all():
        return int(tags[0])
    if not np.count_nonzero(vectors):
        return "zeros"
    if measure_distances(vectors, table).min() < NEAR_TOKEN:
        return measure_drift(vectors, table)
    wrong = np.flatnonzero(np.logical_not(matches).any((0, 2, 3)))
    if len(wrong) < table.heads:
        return f"{int(tags[0])} but not in head {wrong[0]}"
    return NO_TOKEN
