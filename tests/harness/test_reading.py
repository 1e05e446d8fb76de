"""From arrays and masks to rows of tokens, and what is no answer at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from lockstep.harness.backends.backend import Alignment, Arrays
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import (
    MOST_RECALLED,
    Reader,
    get_rows,
    get_visible_columns,
    judge_attention,
    read_mask,
)
from lockstep.harness.contracts.watch import ArrayWatch, holds
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import (
    ExpectedPayloads,
    get_attention_tolerance,
    get_estimate_error,
)
from lockstep.reference.token import Token
from tests.harness.misbehaving import correct

NEVER = -np.inf


BACKEND = correct()
ARRAYS = BACKEND.arrays
SIZES = {"heads": 2, "key_dim": 4, "value_dim": 6}
CONFIG = {"dtype": "float32", "special_numbers": False, **SIZES}


def make_reader(tags: int = 64, **fields: int) -> Reader:
    return Reader(BACKEND, {**CONFIG, **fields}, tags)


@pytest.fixture
def reader() -> Reader:
    return make_reader()


Pair = tuple[Any, Any]


def feed(reader: Reader, *tags: int) -> Pair:
    """K and V of these tags, one column each, fit to be written to."""
    keys, values = reader.feed(range(64))
    return np.array(keys[:, :, list(tags)]), np.array(values[:, :, list(tags)])


@pytest.mark.parametrize("tags", [(5, 6, 7), (5, 7, 6), (6, 7), (7, 7, 7)])
def test_a_guess_is_not_taken_for_facts(reader: Reader, tags: Sequence[int]) -> None:
    likely = [Token(5, 0), Token(6, 1), Token(7, 2)]
    assert reader.read(feed(reader, *tags), "update", likely) == list(tags)


def test_a_key_whose_tag_no_value_can_have_is_said_in_words() -> None:
    reader = make_reader(10, heads=1, value_dim=1)
    pair = reader.keys.vectors[:, :, [20]], reader.values.vectors[:, :, [3]]
    assert reader.read(pair, "update") == ["key of token 20, but value of token 3"]


def test_swapped_arrays_are_said_to_be_swapped() -> None:
    reader = make_reader(value_dim=4)
    keys, values = feed(reader, 5, 6)
    swapped = [f"K of token {tag} is in V, and its V in K" for tag in (5, 6)]
    assert reader.read((values, keys), "update") == swapped


def test_arrays_that_share_memory_do_not_reach_what_is_right(reader: Reader) -> None:
    reader.arrays.from_numpy = lambda array, dtype: array  # type: ignore[method-assign]
    recurrence = Recurrence(reader.arrays, reader.keys, {**CONFIG, "conv_width": 3})
    for which in range(2):
        pair = reader.feed(range(5, 7))
        pair[which][0, 1, 0, 0] = 0.25
        assert reader.read(pair, "update") != [5, 6]
        assert reader.read(reader.feed([5, 6]), "update") == [5, 6]
        state = recurrence.compute((5, 6), 0)
        state[which][0, 1, 0] = 9
        assert recurrence.read(state, "read") != [5, 6]
        assert recurrence.read(recurrence.compute((5, 6), 0), "read") == [5, 6]


def test_a_state_that_is_near_one_is_told_with_its_numbers(reader: Reader) -> None:
    recurrence = Recurrence(reader.arrays, reader.keys, {**CONFIG, "conv_width": 3})
    conv, delta = recurrence.compute((5, 6), 0)
    rounded = delta.copy()
    rounded[0, 0, 0, 0] += 3
    (words,) = recurrence.read((conv, rounded), "read")
    assert str(words).startswith("the state of tokens 5, 6 is off by 3 (got ")
    assert "; 1 of " in str(words)
    conv = conv.copy()
    conv[0, 0, 0] += 0.5
    *_, words = recurrence.read((conv, delta), "read")
    assert "convolution inputs of these (got " in str(words)
    (words,) = recurrence.read((conv, delta + 9000), "read")
    assert words == "a state of no known tokens"


@pytest.mark.parametrize("tokens", [1, 7, 1000])
def test_an_estimate_of_attention_is_what_the_reference_computes(tokens: int) -> None:
    """Up to the error that the judge subtracts from what it allows."""
    config = {**CONFIG, "key_dim": 8, "value_dim": 4}
    payloads = ExpectedPayloads(config, 1024, 0, "float32")
    seen = list(range(tokens))
    exact = payloads.compute_row(tokens, seen)
    off = np.abs(payloads.estimate_row(tokens, seen) - exact).max()
    error = get_estimate_error(8, tokens)
    assert off <= error < get_attention_tolerance("float32", 8, tokens) / 1e8


def test_the_reference_judges_a_row_that_an_estimate_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row at the limit of what is allowed, or beyond it, or of NaN."""
    reader, asked = make_reader(), list[Any]()
    exact = ExpectedPayloads.compute_row

    def compute(self: Any, *about: Any) -> Any:
        asked.append(about)
        return exact(self, *about)

    monkeypatch.setattr(ExpectedPayloads, "compute_row", compute)
    seen = [0, 1, 2]
    wanted = exact(reader, 2, seen)
    allowed = get_attention_tolerance("float32", 4, 3)
    reader.judge(wanted, 2, seen, 0, "update")
    reader.judge(wanted + 0.99 * allowed, 2, seen, 0, "update")
    assert not asked
    reader.judge(wanted + allowed * (1 - 1e-12), 2, seen, 0, "update")
    assert len(asked) == 1
    for off in 1.01 * allowed, np.nan:
        with pytest.raises(Broken, match="attention over the arrays of update is off"):
            reader.judge(wanted + off, 2, seen, 0, "update")
    assert len(asked) == 3


def test_attention_that_is_off_is_told_with_its_numbers() -> None:
    wanted = np.zeros((2, 4))
    got = wanted.copy()
    got[1, 2] = 0.5
    words = r"row 3 \(got 0.5, expected 0 in head 1, dimension 2; 1 of 8 numbers differ"
    with pytest.raises(Broken, match=words):
        judge_attention(got, wanted, 0.1, 3, "update")


def test_an_array_holds_its_numbers_whatever_their_bytes() -> None:
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    nan = np.full(3, np.nan, np.float32)
    assert not holds(-zeros, zeros.tobytes())
    assert holds(-nan, nan.tobytes())
    assert not holds(ones, zeros.tobytes())
    assert not holds(nan, zeros.tobytes())
    assert not holds(zeros, b"")


# --- columns ----------------------------------------------------------------------------


def test_columns_are_read_in_their_order(reader: Reader) -> None:
    assert reader.read(feed(reader, 5, 0, 63, 5), "update") == [5, 0, 63, 5]
    assert reader.read(feed(reader), "update") == []


def spoil(number: float) -> Callable[[Any, Any], Pair]:
    """One number in the last column of K."""

    def change(keys: Any, values: Any) -> Pair:
        keys[0, 1, -1, 2] = number
        return keys, values

    return change


LAST_ZERO = np.array([[1], [0]], np.float32)


def drift(keys: Any, values: Any) -> Pair:
    values[:, :, -1] += 0.0031
    return keys, values


def coarse(keys: Any, values: Any) -> Pair:
    """Rounds the last column, as 4 bits for a number do."""
    keys[:, :, -1] = np.round(keys[:, :, -1] * 7) / 7
    return keys, values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoil(0.125), "2 but not in head 1"),
        (spoil(np.nan), "NaN"),
        (spoil(np.inf), "2 but not in head 1"),
        (lambda keys, values: (keys * LAST_ZERO, values * LAST_ZERO), "zeros"),
        (lambda keys, values: (keys, values[:, :, [0, 0]]), "2, but value of token 1"),
        (drift, "differ), allowed 0; if the cache is quantized, declare `tolerance`"),
        (coarse, "K of token 2 is off by 0.054 (got 1, expected 0.945997 in head "),
    ],
)
def test_what_is_no_token_is_named(
    reader: Reader, change: Callable[[Any, Any], Pair], words: str
) -> None:
    columns = reader.read(change(*feed(reader, 1, 2)), "update")
    assert columns[0] == 1
    assert words in str(columns[1])


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (0.004, None),
        (0.0031, None),
        (
            0.006,
            "V of token 2 is off by 0.006 (got -0.4315, expected -0.4375 in head 0,"
            " dimension 0; 12 of 12 numbers differ), allowed 0.005",
        ),
    ],
)
def test_a_tolerance_allows_an_error_of_each_number(off: float, words: str) -> None:
    reader = Reader(replace(BACKEND, tolerance=0.005), CONFIG, 64)
    keys, values = feed(reader, 1, 2)
    values[:, :, -1] += off
    assert reader.read((keys, values), "update") == [1, words or 2]
    assert reader.margin == pytest.approx(0 if words else off / 0.005, rel=1e-4)


def test_numbers_of_inexact_storage_that_are_far_off_are_told() -> None:
    """Also where two tokens are farther apart than a number is from its own."""
    reader = Reader(replace(BACKEND, tolerance=0.005), CONFIG, 64)
    keys, values = feed(reader, 1, 2)
    values[0, 1, 1, 3] += 0.3
    _, column = reader.read((keys, values), "update")
    assert str(column).startswith("V of token 2 is off by 0.3 (got ")
    end = " in head 1, dimension 3; 1 of 12 numbers differ), allowed 0.005"
    assert str(column).endswith(end)
    keys[0, 0, 1, 0] += 0.4
    _, column = reader.read((keys, values), "update")
    assert str(column).startswith("K of token 2 is off by 0.4 (got ")
    keys[0, :, 1] = np.nan
    _, column = reader.read((keys, values), "update")
    assert str(column).startswith("key of NaN, but its value is token 2 off by 0.3")


def test_heads_in_each_other_s_place_are_no_token(reader: Reader) -> None:
    keys, values = feed(reader, 1, 2, 3)
    columns = reader.read((keys[:, ::-1], values), "update")
    assert all(isinstance(column, str) for column in columns)


def test_keys_in_the_place_of_values_are_no_token() -> None:
    reader = make_reader(heads=1, value_dim=4)
    keys, values = feed(reader, 1, 2, 3)
    assert not {1, 2, 3} & {*reader.read((values, keys), "update")}


def test_without_value_dimensions_the_key_is_enough() -> None:
    reader = make_reader(value_dim=0)
    assert reader.read(feed(reader, 3, 1), "update") == [3, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda keys, values: None, "update returned None, not a pair"),
        (lambda keys, values: keys, "update returned ndarray, not a pair"),
        (lambda keys, values: (keys, values, None), "not a pair"),
        (lambda keys, values: (keys, None), "None in the place of an array"),
        (lambda keys, values: (keys.tolist(), values), "cannot be read as an array"),
        (lambda keys, values: (keys[0], values), r"K of update has shape \[2, 2, 4\]"),
        (lambda keys, values: (keys, values[:, :1]), r"V of update has shape \[1, 1,"),
        (lambda keys, values: (keys[..., :3], values), "K of update has shape"),
        (lambda keys, values: (values, keys), "K of update has shape"),
        (lambda keys, values: (keys.astype(np.float16), values), "dtype float16, not"),
        (lambda keys, values: (keys[:, :, 1:], values), "K with 1 columns, but V with 2"),
    ],
)
def test_malformed(reader: Reader, change: Callable[[Any, Any], Any], words: str) -> None:
    with pytest.raises(Broken, match=words) as caught:
        reader.read(change(*feed(reader, 1, 2)), "update")
    assert caught.value.what == "malformed"


# --- masks ------------------------------------------------------------------------------

COLUMNS = [7, 8, 9]


def see(
    mask: Any, length: int, rows: int = 0, alignment: Alignment = "lower-right"
) -> Any:
    content = read_mask(mask, ARRAYS)
    return get_rows(COLUMNS, content, length, rows or length, alignment)


BOOLEAN = np.array([[1, 1, 0], [0, 1, 1]], np.bool_)
SEEN = [[7, 8], [8, 9]]


FLOATS = np.where(BOOLEAN, 0, NEVER).astype(np.float32)
LOW, LOW_16 = np.finfo(np.float32).min, np.finfo(np.float16).min


@pytest.mark.parametrize(
    "mask",
    [
        BOOLEAN,
        BOOLEAN[None, None],
        FLOATS,
        FLOATS.astype(np.float16)[None],
        np.where(BOOLEAN, 0, LOW).astype(np.float32),
        np.where(BOOLEAN, 0, LOW_16).astype(np.float16),
        np.where(BOOLEAN, 0, -1e9).astype(np.float32),
        np.where(BOOLEAN, -0.0, NEVER).astype(np.float32),
    ],
)
def test_masks_of_every_form(mask: Any) -> None:
    assert see(mask, 2) == SEEN


LAST_HIDDEN = np.array([1, 1, 0], np.bool_)
FIRST_ROW = np.array([[1], [0]], np.bool_)


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (LAST_HIDDEN, [[7, 8], [7, 8]]),
        (LAST_HIDDEN[None], [[7, 8], [7, 8]]),
        (LAST_HIDDEN[None, None, None], [[7, 8], [7, 8]]),
        (np.where(LAST_HIDDEN, 0, NEVER).astype(np.float32), [[7, 8], [7, 8]]),
        (FIRST_ROW, [[7, 8, 9], []]),
        (FIRST_ROW[None, None], [[7, 8, 9], []]),
        (np.array(True), [[7, 8, 9], [7, 8, 9]]),
        (np.zeros((1, 1), np.float32), [[7, 8, 9], [7, 8, 9]]),
    ],
)
def test_masks_that_broadcast(mask: Any, seen: Any) -> None:
    assert see(mask, 2) == seen


def test_masks_without_an_array_and_with_padding() -> None:
    assert see(None, 2) == [[7, 8, 9], [7, 8, 9]]
    assert see("causal", 2) == [[7, 8], [7, 8, 9]]
    assert see("causal", 2, alignment="upper-left") == [[7], [7, 8]]
    assert see("causal", 3) == see("causal", 3, alignment="upper-left")
    padded = np.concatenate([BOOLEAN, np.zeros((2, 3), np.bool_)])
    assert see(padded, 2, rows=4) == SEEN


PADDING_SEES = np.concatenate([BOOLEAN, np.array([[0, 0, 0], [0, 0, 1]], np.bool_)])


@pytest.mark.parametrize(
    ("mask", "length", "rows", "what", "words"),
    [
        (PADDING_SEES, 2, 4, "mask", "row 3 of the mask is padding"),
        (None, 2, 4, "mask", "2 rows of padding see"),
        ("causal", 2, 4, "mask", "2 rows of padding see"),
        (BOOLEAN[:, :2], 2, 2, "mask", r"shape \[2, 2\], which .* to 2 rows × 3 columns"),
        (BOOLEAN, 2, 3, "mask", "not broadcast to 3 rows"),
        (LAST_HIDDEN[:2], 2, 2, "mask", r"shape \[2\], which .* to 2 rows × 3 columns"),
        (FIRST_ROW[None], 2, 3, "mask", r"shape \[1, 2, 1\], which .* to 3 rows"),
        (LAST_HIDDEN, 2, 4, "mask", "row 2 of the mask is padding"),
        (np.stack([BOOLEAN, BOOLEAN]), 2, 2, "mask", r"shape \[2, 2, 3\]"),
        (np.where(BOOLEAN, 0, np.nan), 2, 2, "mask", "other than 0 and -inf"),
        (np.where(BOOLEAN, 0, -5.0), 2, 2, "mask", "other than 0 and -inf"),
        (np.where(BOOLEAN, 1, 0), 2, 2, "mask", "other than 0 and -inf"),
        ("full", 2, 2, "malformed", "'full'; expected None, "),
        (BOOLEAN.tolist(), 2, 2, "malformed", "the mask is a list"),
    ],
)
def test_broken_masks(mask: Any, length: int, rows: int, what: str, words: str) -> None:
    with pytest.raises(Broken, match=words) as caught:
        see(mask, length, rows)
    assert caught.value.what == what


def test_a_mask_that_changes_is_read_again() -> None:
    mask = BOOLEAN.copy()
    assert see(mask, 2) == SEEN
    mask[0, 0] = False
    assert see(mask, 2) == [[8], [8, 9]]


def test_a_mask_is_not_taken_for_one_of_the_same_bytes() -> None:
    assert see(np.zeros((2, 3), np.bool_), 2) == [[], []]
    assert see(np.zeros((2, 3), np.uint8), 2) == [COLUMNS, COLUMNS]
    assert see(np.zeros((2, 3), np.float16), 2) == [COLUMNS, COLUMNS]
    with pytest.raises(Broken, match="other than 0 and -inf"):
        see(BOOLEAN.view(np.uint8), 2)


class AsTheyAre:
    """Arrays of a backend that hands numpy its own."""

    def to_numpy(self, array: Any) -> Any:
        return array


@pytest.mark.parametrize("dtype", [object, complex, "U1"])
def test_a_mask_of_no_numbers_is_not_looked_into(dtype: Any) -> None:
    """The bytes of an object are where it is now: another one may be there next."""
    arrays = cast(Arrays, AsTheyAre())
    with pytest.raises(Broken, match="the mask holds ") as caught:
        get_visible_columns(read_mask(BOOLEAN.astype(dtype), arrays), 2, 3)
    assert caught.value.what == "malformed"


def test_what_stands_in_a_mask_too_large_to_be_remembered() -> None:
    width = MOST_RECALLED
    mask = np.full((1, width), NEVER, np.float32)
    mask[0, [3, width - 1]] = 0
    sight = get_visible_columns(mask, 1, width)
    assert sight.rows == ((3, width - 1),)
    assert [at for at, seen in enumerate(sight.seen) if seen] == [3, width - 1]
    mask[0, 5] = -1
    with pytest.raises(Broken, match="other than 0 and -inf"):
        get_visible_columns(mask, 1, width)


# --- arrays that must keep what they hold -----------------------------------------------


def write(keys: Any) -> None:
    keys[0, 0, 0, 0] = 1


def reshape(keys: Any) -> None:
    keys.shape = 2, 4


@pytest.mark.parametrize("change", [write, reshape])
def test_an_array_that_changes_breaks_its_promise(change: Callable[[Any], None]) -> None:
    promises = ArrayWatch(ARRAYS)
    keys, values = np.zeros((1, 1, 2, 4), np.float32), np.full((1, 1, 2, 4), np.nan)
    promises.keep("a", "view", (keys, values))
    promises.check()
    change(keys)
    promises.check("b")
    with pytest.raises(Broken, match=r"view .*has changed") as caught:
        promises.check()
    assert caught.value.what == "alias"
    promises.drop("a")
    promises.check()
