"""Tags as vectors: exact in every dtype, and telling for the place they stand in."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lockstep.harness.core.payload import (
    ROLES,
    choose_levels,
    compute_vectors,
    count_digits,
    get_salt,
    get_step,
    get_table,
    get_tag_limit,
    lay_out,
    snap,
)
from lockstep.harness.execution.executor import run
from lockstep.impl.torch.backend import cpu
from tests.harness.building import make, update
from tests.harness.changing import change_caches

F32 = npt.NDArray[np.float32]


def round_to(dtype: str, array: F32) -> F32:
    """Returns `array` after storage in `dtype`."""
    if dtype == "bfloat16":  # the upper half of a float32; here cut off, not rounded
        return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return array.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("dim", "limit"), [(1, 16), (2, 256), (3, 4096), (8, 5000)])
@pytest.mark.parametrize("role", ["key", "value", "query"])
def test_tags_are_read_back(dtype: str, dim: int, limit: int, role: str) -> None:
    table = get_table(2, role, 3, dim, limit, dtype)  # type: ignore[arg-type]
    stored = round_to(dtype, np.array(table.vectors[:, :, :limit]))
    assert np.array_equal(stored, table.vectors[:, :, :limit])
    assert table.read_tags(stored).tolist() == list(range(limit))


NARROWER = [("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16")]


@pytest.mark.parametrize(("dtype", "narrower"), NARROWER)
def test_a_detour_through_a_narrower_dtype_shows(dtype: str, narrower: str) -> None:
    """In every vector; numbers near 0 have a bit or two to spare."""
    vectors = get_table(0, "value", 2, 4, 512, dtype).vectors
    assert (round_to(narrower, np.array(vectors)) != vectors).any(axis=3).all()


def test_a_detour_through_float8_shows_in_bfloat16() -> None:
    """float8 e4m3 has four significant bits; the payload of bfloat16 uses eight."""
    vectors = get_table(0, "value", 2, 4, 512, "bfloat16").vectors
    mantissa, exponent = np.frexp(vectors)
    rounded = np.ldexp(np.round(mantissa * 16) / 16, exponent)
    assert (rounded != vectors).any(axis=3).all()


@pytest.mark.parametrize(("dim", "limit"), [(1, 16), (2, 256), (4, 65536), (9, 65536)])
def test_tag_limit(dim: int, limit: int) -> None:
    assert get_tag_limit(dim) == limit


def test_no_two_places_write_a_tag_alike() -> None:
    places = list(itertools.product(range(2), range(4), ROLES))
    tags = np.arange(64)
    vectors = [compute_vectors(tags, *place, 4, "bfloat16") for place in places]
    for left, right in itertools.combinations(vectors, 2):
        assert not (left == right).all(axis=1).any()


def test_salts_are_distinct_with_three_digits() -> None:
    salts = {
        get_salt(layer, head, role) % 16**3
        for layer, head, role in itertools.product(range(16), range(64), ROLES)
    }
    assert len(salts) == 16 * 64 * 3


@pytest.mark.parametrize("dim", [2, 4, 6, 8])
def test_exchanged_dimensions_show(dim: int) -> None:
    vectors = compute_vectors(np.arange(64), 0, 0, "key", dim, "float16")
    for left, right in itertools.combinations(range(dim), 2):
        order = list(range(dim))
        order[left], order[right] = right, left
        changed = (vectors[:, order] != vectors).any(axis=1)
        assert changed.mean() > 0.8, (left, right)


def test_neighbours_differ_in_more_than_one_dimension() -> None:
    vectors = compute_vectors(np.arange(256), 0, 0, "key", 4, 16)
    assert ((vectors[1:] != vectors[:-1]).sum(axis=1) > 1).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0])
def test_what_is_no_tag_reads_without_a_warning(number: float) -> None:
    """Memory that was never written may hold anything. Warnings are errors here."""
    table = get_table(0, "key", 1, 4, 64)
    array = np.full((1, 1, 2, 4), number, np.float32)
    array[0, 0, 1] = [number, -number, number, -number]
    assert (table.get_vectors(table.read_tags(array)) != array).any(axis=3).all()


def test_snap_moves_what_is_near_and_nothing_else() -> None:
    array = np.array([1.02, 0.9, 0.07, -0.06, 0.0, np.nan, np.inf], np.float32)
    snapped = snap(array, 0.05)
    assert snapped[1:4].tolist() == [0.9375, 0.0625, -0.0625]
    assert np.array_equal(snapped[[0, 4, 5, 6]], array[[0, 4, 5, 6]], equal_nan=True)


@pytest.mark.parametrize(("levels", "digits"), [(16, 4), (4, 8), (2, 16)])
def test_coarse_numbers_spell_tags_too(levels: int, digits: int) -> None:
    """Each number is off by nearly half the distance of two; all tags are told."""
    assert (count_digits(levels), get_tag_limit(digits, levels)) == (digits, 65536)
    table = get_table(1, "value", 2, 32, 1000, levels)
    assert len(np.unique(table.vectors)) == levels
    off = 0.97 * get_step(levels) / 2
    tolerance = off + 1e-6
    assert choose_levels(tolerance) == levels
    signs = np.random.default_rng(0).choice([-off, off], table.vectors.shape)
    snapped = snap((table.vectors + signs).astype(np.float32), tolerance)
    assert np.array_equal(snapped, table.vectors)
    assert table.read_tags(snapped).tolist() == list(range(len(table.vectors[0, 0])))


@pytest.mark.parametrize(
    ("tolerance", "levels"),
    [(0.004, 16), (0.0624, 16), (0.0626, 4), (0.31, 4), (0.32, 2), (0.93, 2)],
)
def test_as_many_numbers_as_can_be_told_apart(tolerance: float, levels: int) -> None:
    assert choose_levels(tolerance) == levels


def test_numbers_that_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"tolerance 0\.95 is too large"):
        choose_levels(0.95)


def test_snap_leaves_what_is_not_finite() -> None:
    """Padding may come back as anything; a warning is an error in tests."""
    array = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.array_equal(snap(array, 0.05), array, equal_nan=True)


@pytest.mark.parametrize(
    "shape", [(1, 1, 3, 4), (2, 3, 1, 6), (1, 2, 0, 4), (1, 2, 3, 0)]
)
def test_some_arrays_are_not_contiguous(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape, np.float32)
    for tag in range(8):
        laid = lay_out(array, tag)
        assert np.array_equal(laid, array)
        assert laid.flags.c_contiguous == (tag % 4 != 1 or not array.size), tag


def test_a_cache_that_takes_arrays_for_contiguous_diverges() -> None:
    def read_flat(array: torch.Tensor) -> torch.Tensor:
        return array.as_strided(array.shape, torch.empty(array.shape).stride())

    def change(cache: Any) -> None:
        right = cache.update
        cache.update = lambda *pair: right(*map(read_flat, pair))

    program = make(update(1), update(2))
    assert run(program, cpu()).divergence is None
    divergence = run(program, change_caches(cpu(), change)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("contents", 1)
