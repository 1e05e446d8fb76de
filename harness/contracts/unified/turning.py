"""Turned keys: angles from a table, numbers rounded as a dtype holds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from lockstep.harness.core.payload import F32, Table
from lockstep.reference.rope import compute_angle

F64 = npt.NDArray[np.float64]

NEAR = 256
"""Positions for which the turns of keys are kept: programs seldom go farther."""


@cache
def get_halves(table: Table) -> F64:
    """[2, heads, tags, dim] in double precision: the vectors (x, y) of a table, and
    (-y, x), what turning adds to them."""
    vectors = table.vectors[0].astype(np.float64)
    x, y = np.split(vectors, 2, axis=-1)
    return np.stack([vectors, np.concatenate([-y, x], axis=-1)])


def get_turns(positions: Sequence[int], dim: int, base: int) -> F64:
    """[2, positions, dim]: the cosine and the sine of the angle of each pair, twice."""
    if max(positions, default=0) < NEAR:
        return get_near_turns(dim, base).take(positions, axis=1)
    return compute_turns(np.asarray(positions), dim, base)


@cache
def get_near_turns(dim: int, base: int) -> F64:
    return compute_turns(np.arange(NEAR), dim, base)


def compute_turns(positions: npt.NDArray[np.int64], dim: int, base: int) -> F64:
    angles = np.tile(positions[:, None] * get_rates(dim, base), 2)  # [positions, dim]
    return np.stack([np.cos(angles), np.sin(angles)])


@cache
def get_rates(dim: int, base: int) -> F64:
    """[dim / 2]: the angle of each pair at position 1, from the reference."""
    return np.array([compute_angle(1, pair, dim, base) for pair in range(dim // 2)])


def round_to(array: F32, dtype: str) -> F32:
    """Each number as the dtype holds it, to the nearest, ties to even."""
    if dtype == "float16":
        return array.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = array.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32)
    return array
