"""The mask that a line and patches make is the one that a comparison of every row
with every column says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.causal import FAR
from lockstep.impl.shared.cells import BITS
from lockstep.impl.shared.mask_line import MaskLine, Seen, compute_mask_line, see

Case = tuple[Ints, Ints, Ints]
"""limits, positions, bits"""


def compare_all(limits: Ints, positions: Ints, bits: Ints) -> Seen:
    owner, low, high = limits[:, :, None]
    seen: Seen = ((bits & owner) != 0) & (positions >= low) & (positions <= high)
    return seen


def put_together(mask_line: MaskLine, width: int) -> Seen:
    rows = np.stack([mask_line.line[begin : begin + width] for begin in mask_line.begins])
    for patch in mask_line.patches:
        every = (np.arange(size) for size in rows.shape)
        across, along = next(every)[patch.rows], next(every)[patch.columns]
        rows[across[:, None], along] = patch.seen
    return rows


def check(case: Case) -> MaskLine:
    limits, positions, bits = case
    mask_line = compute_mask_line(limits, positions, bits)
    seen = put_together(mask_line, len(positions))
    assert np.array_equal(seen, compare_all(limits, positions, bits))
    return mask_line


def make_prompt(before: int, rows: int, window: int | None = None) -> Case:
    """A prompt in cells that follow each other; the last `rows` of it are new."""
    positions = np.arange(before + rows)
    high = positions[before:]
    low = np.zeros_like(high) if window is None else np.maximum(0, high - window)
    limits = np.stack((np.ones_like(high), low, high))
    return limits, positions, np.ones_like(positions)


def test_rows_of_padding_see_nothing() -> None:
    case = make_prompt(3, 2)
    assert np.array_equal(see(*case, 2), compare_all(*case))
    assert np.array_equal(see(*case, 4), np.pad(compare_all(*case), ((0, 2), (0, 0))))


@pytest.mark.parametrize("before", [0, 1, 7, 100])
@pytest.mark.parametrize("rows", [1, 2, 50])
@pytest.mark.parametrize("window", [None, 0, 1, 30])
def test_a_prompt(before: int, rows: int, window: int | None) -> None:
    check(make_prompt(before, rows, window))


def test_a_prompt_is_one_line_without_patches() -> None:
    assert check(make_prompt(100, 50)).patches == ()
    assert check(make_prompt(100, 50, window=30)).patches == ()


def test_rows_that_look_ahead_break_the_line() -> None:
    limits, positions, bits = make_prompt(10, 5)
    limits[2, 3] = FAR
    assert check((limits, positions, bits)).patches


def test_a_hole_breaks_the_line() -> None:
    limits, positions, bits = make_prompt(10, 5)
    check((limits, np.delete(positions, 4), np.delete(bits, 4)))
    bits[4] = 0
    check((limits, positions, bits))


def test_the_last_sequence_has_the_sign() -> None:
    bits = BITS[[63, 0, 63, 62]] | BITS[[0, 0, 62, 62]]
    limits = np.stack((BITS[[63, 63, 62, 0]], np.array([0, 1, 0, 2]), np.full(4, 3)))
    check((limits, np.arange(4), bits))


@st.composite
def draw_cases(draw: st.DrawFn) -> Case:
    """Any table at all, and any limits."""
    sequences = draw(st.integers(1, 4))
    columns, rows = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    number = st.integers(0, 8)
    ints = st.lists(number, min_size=columns, max_size=columns)
    sets = st.lists(st.integers(0, 2**sequences - 1), min_size=columns, max_size=columns)
    positions, bits = np.array(draw(ints)), np.array(draw(sets))
    if draw(st.booleans()):
        positions = np.arange(columns) + draw(number)
    limits = np.array(
        [
            (1 << draw(st.integers(0, sequences - 1)), draw(number), draw(number))
            for _ in range(rows)
        ]
    ).T
    if draw(st.booleans()):
        limits[2] = np.arange(rows) + draw(number)
    if draw(st.booleans()):
        limits[1] = draw(number)
    return limits.copy(), positions, bits


@given(draw_cases())
def test_any_table(case: Case) -> None:
    check(case)
