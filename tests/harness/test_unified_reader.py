"""Keys at positions: what goes in is what the reference says, and what comes out is told
apart, exactly where nothing was turned and within tolerance where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from misbehaving import NumpyArrays

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.unified.model import CONFIG, Turns, list_fed
from lockstep.harness.contracts.unified.reader import PositionReader, round_to
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import UNIT, get_key_tolerance
from lockstep.reference.rope import rotate

DTYPES = ("float32", "float16", "bfloat16")


class Arrays(NumpyArrays):
    """numpy arrays that say they have the dtype of the test."""

    def __init__(self, dtype: str) -> None:
        self.name = dtype

    def from_numpy(self, array: Any, dtype: str) -> Any:
        return np.array(array, np.float32)

    def dtype(self, array: Any) -> str:
        return self.name


def make_reader(
    dtype: str = "float32",
    base: int | None = 10_000,
    offsets: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    **fields: Any,
) -> Any:
    config = {name: schema.get("default") for name, schema in CONFIG.items()}
    config |= {"dtype": dtype, "heads": 2, "key_dim": 6, "value_dim": 4, **fields}
    backend = Backend("test", "cpu", {}, Arrays(dtype), lambda config: None)
    return PositionReader(backend, config, 64, 0, base, offsets)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_those_of_the_reference(dtype: str) -> None:
    reader = make_reader(dtype)
    tags, positions = [3, 7, 3], [0, 5, 1000]
    keys, values = reader.feed(tags, positions)
    for row, (tag, position) in enumerate(zip(tags, positions, strict=True)):
        for head in range(2):
            plain = reader.keys.vectors[0, head, tag].astype(float).tolist()
            wanted = np.array(rotate(plain, position, 10_000))
            assert np.abs(keys[0, head, row] - wanted).max() <= 1.5 * UNIT[dtype]
            assert (values[0, head, row] == reader.values.vectors[0, head, tag]).all()
        assert (reader.get_key((position, tag)) == keys[0, :, row]).all()


def test_keys_of_images_are_rotated_by_three_coordinates() -> None:
    reader = make_reader(offsets={3: (2, 0), 7: (0, 5)}, sections=[1, 1, 1])
    keys, _ = reader.feed([3, 7, 8], [10, 1000, 4])
    places = (10, 12, 10), (1000, 1000, 1005), (4, 4, 4)
    for row, (tag, place) in enumerate(zip((3, 7, 8), places, strict=True)):
        plain = reader.keys.vectors[0, 1, tag].astype(float).tolist()
        wanted = np.array(rotate(plain, place, 10_000, [1, 1, 1]))
        assert np.abs(keys[0, 1, row] - wanted).max() <= 1.5 * UNIT["float32"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_to_the_nearest_even(dtype: str) -> None:
    unit = UNIT[dtype]
    numbers = np.array([1 + unit, 1 + 3 * unit, 1 + unit * 1.01, -1 - unit, 0, 0.3])
    wanted = [1, 1 + 4 * unit, 1 + 2 * unit, -1, 0]
    rounded = round_to(numbers.astype(np.float32), dtype)
    assert rounded[:5].tolist() == wanted
    assert abs(rounded[5] - 0.3) <= unit * 0.3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", [10_000, None])
def test_what_was_fed_is_read_back(dtype: str, base: int | None) -> None:
    reader = make_reader(dtype, base)
    pair = reader.feed([4, 9], [2, 30])
    assert reader.read(pair, {4: 2, 9: 30}, {}, "get") == [(2, 4), (30, 9)]


def test_a_key_at_another_position_is_found_there() -> None:
    reader = make_reader()
    pair = reader.feed([4], [17])
    assert reader.read(pair, {4: 2}, {}, "get") == [(17, 4)]


def test_what_is_no_token_is_said_in_words() -> None:
    reader = make_reader()
    keys, values = reader.feed([4, 5, 6, 7, 8], [0, 1, 2, 3, 4])
    keys[0, 0, 0, 0] += 0.01
    values[0, 1, 1, 2] += 0.5
    values[0, 1, 4, 2] += 0.01
    keys[0, :, 2], values[0, :, 2] = np.nan, np.nan
    values[0, :, 3] = reader.values.vectors[0, :, 9]
    positions = {tag: tag - 4 for tag in range(4, 9)}
    columns = reader.read((keys, values), positions, {}, "get")
    key, *others, drifted = columns
    assert key == (
        "K of token 4 is off by 0.01 (got 0.679311, expected 0.669311 in head 0,"
        " dimension 0; 1 of 12 numbers differ), allowed 0 (at position 0)"
    )
    assert others == [
        "(value: 5 but not in head 1)",
        "NaN",
        "key of no token at any position, but value of token 9",
    ]
    assert str(drifted).startswith("V of token 8 is off by 0.01 (got ")
    assert str(drifted).endswith(" numbers differ), allowed 0")
    unseen = reader.read((keys, values), positions, {}, "get", [False] * 5)
    assert unseen == ["what no row sees"] * 5


def test_a_turned_key_that_is_off_is_told_with_its_tolerance() -> None:
    reader = make_reader()
    keys, values = reader.feed([4], [5])
    keys[0, 0, 0, 1] += 0.01
    (column,) = reader.read((keys, values), {4: 5}, {4: Turns(2, 6)}, "get")
    assert str(column).startswith("K of token 4 is off by 0.01 (got ")
    assert "(at position 5, turned 2 times)" in str(column)
    assert "allowed 0 " not in str(column)


def test_permuted_values_are_read() -> None:
    reader = make_reader(permuted_values=True)
    keys, values = reader.feed([4, 9], [2, 3])
    pair = keys, values.swapaxes(2, 3)
    assert reader.read(pair, {4: 2, 9: 3}, {}, "get") == [(2, 4), (3, 9)]
    with pytest.raises(Broken, match=r"not \[1, 2, 4, columns\]"):
        reader.read((keys, values), {}, {}, "get")


def turn(keys: Any, distance: int, dtype: str) -> Any:
    """As an implementation does it: in float32, rounded to the dtype."""
    half = keys.shape[-1] // 2
    rates = np.array([10_000.0 ** (-2 * pair / (2 * half)) for pair in range(half)])
    angles = (rates * distance).astype(np.float32)
    x, y = keys[..., :half], keys[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return round_to(np.concatenate([x * cos - y * sin, x * sin + y * cos], -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("times", [1, 2, 7])
def test_a_key_is_within_tolerance_if_it_was_turned(dtype: str, times: int) -> None:
    reader = make_reader(dtype)
    tags = list(range(40))
    keys, values = reader.feed(tags, [50] * 40)
    for _ in range(times):
        keys = turn(keys, -3, dtype)
    now = 50 - 3 * times
    positions = dict.fromkeys(tags, now)
    turns = dict.fromkeys(tags, Turns(times, 3 * times))
    read = reader.read((keys, values), positions, turns, "get")
    assert read == [(now, tag) for tag in tags]
    assert 0.01 < reader.margin < 1
    read = reader.read((keys, values), positions, {}, "get")
    assert read != [(now, tag) for tag in tags]


def test_only_the_key_that_was_near_enough_is_taken_for_it_again() -> None:
    reader = make_reader()
    keys, values = reader.feed([4], [50])
    keys = turn(keys, -3, "float32")
    turned = {4: 47}, {4: Turns(1, 3)}, "get"
    assert reader.read((keys, values), *turned) == [(47, 4)]
    assert reader.read((keys, values), *turned) == [(47, 4)]
    keys[0, 1, 0, 0] += 0.01
    assert reader.read((keys, values), *turned) != [(47, 4)]
    keys[0, 1, 0, 0] = np.nan
    assert reader.read((keys, values), *turned) != [(47, 4)]


def test_numbers_of_another_width_are_read_too() -> None:
    reader = make_reader()
    reader.arrays.to_numpy = lambda array: array
    keys, values = reader.feed([4, 9], [2, 3])
    pair = keys.astype(np.float64), values.astype(np.float64)
    assert reader.read(pair, {4: 2, 9: 3}, {}, "get") == [(2, 4), (3, 9)]
    pair[0][0, 1, 1, 0] += 1e-12
    assert reader.read(pair, {4: 2, 9: 3}, {}, "get")[1] != (3, 9)


@pytest.mark.parametrize("tags", [range(4, 5), range(4, 6), [4], [4, 9]])
def test_shared_memory_does_not_reach_what_is_right(tags: Sequence[int]) -> None:
    reader = make_reader()
    reader.arrays.from_numpy = lambda array, dtype: array
    positions = dict(zip(tags, (50, 51), strict=False))
    right = [(at, tag) for tag, at in positions.items()]
    for which in range(2):
        pair = reader.feed(tags, list(positions.values()))
        assert all(array.flags.c_contiguous for array in pair)
        assert reader.read(pair, positions, {}, "get") == right
        pair[which][0, 1, 0, 0] = 0.25
        assert reader.read(pair, positions, {}, "get") != right
    pair = reader.feed(tags, list(positions.values()))
    assert reader.read(pair, positions, {}, "get") == right


def test_the_places_of_a_program_have_the_tags_that_it_gives_them() -> None:
    passes = [
        {"positions": [0, 1], "multimodal": [1]},
        {"positions": [-1, 7], "multimodal": []},
    ]
    ops = [{"op": "forward", **fields} for fields in passes]
    ops.insert(1, {"op": "remove"})
    assert list_fed(ops) == [(0, 0), (1, 1), (7, 6)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tolerance_hides_a_step(dtype: str) -> None:
    """A key one position off is told apart, in the coarsest dtype, after six turns."""
    reader = make_reader(dtype)
    right = reader.compute_keys(range(64), [20] * 64)
    wrong = reader.compute_keys(range(64), [21] * 64)
    off = np.abs(right - wrong).max((0, 1, 3))
    assert off.min() > get_key_tolerance(dtype, 6, 60)
