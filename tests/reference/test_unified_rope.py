"""The rotation of keys, against complex numbers and its own laws."""

from __future__ import annotations

from cmath import exp
from math import cos, hypot, sin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.rope import compute_angle, rotate

QUICK = settings(max_examples=60, deadline=None, database=None)

VECTORS = st.sampled_from((2, 4, 6, 8)).flatmap(
    lambda dim: st.lists(st.floats(-8, 8), min_size=dim, max_size=dim)
)
POSITIONS = st.integers(-500, 500)
BASES = st.sampled_from((7.0, 100.0, 10_000.0, 500_000.0))


def test_a_pair_turns_as_a_complex_number() -> None:
    """Of [1, 2, 3, 4] the pairs are 1 + 3i and 2 + 4i. At position 3 with base 100 the
    first turns by 3, the second by 3 / 100^(2/4) = 0.3."""
    first, second = (1 + 3j) * exp(3j), (2 + 4j) * exp(0.3j)
    expected = [first.real, second.real, first.imag, second.imag]
    assert rotate([1, 2, 3, 4], 3, 100) == pytest.approx(expected, abs=1e-12)


def test_numbers_worked_out_by_hand() -> None:
    """cos 1 = 0.5403023, sin 1 = 0.8414710; cos 0.01 and sin 0.01 for the slower pair."""
    turned = rotate([1, 0, 0, 2], 1, 10_000)
    assert turned == pytest.approx(
        [0.5403023, -2 * 0.0099998, 0.8414710, 2 * 0.9999500], abs=1e-6
    )
    assert rotate([1, 0], 2, 10_000) == pytest.approx([cos(2), sin(2)], abs=1e-12)


@pytest.mark.parametrize(
    ("position", "pair", "dim", "base", "angle"),
    [
        (5, 0, 8, 10_000, 5),
        (5, 1, 8, 10_000, 0.5),
        (5, 2, 8, 10_000, 0.05),
        (5, 3, 8, 10_000, 0.005),
        (7, 1, 4, 49, 1),
        (-7, 1, 4, 49, -1),
        (0, 1, 4, 49, 0),
    ],
)
def test_each_pair_is_slower_than_the_one_before(
    position: int, pair: int, dim: int, base: float, angle: float
) -> None:
    assert compute_angle(position, pair, dim, base) == pytest.approx(angle)


@QUICK
@given(vector=VECTORS, one=POSITIONS, two=POSITIONS, base=BASES)
def test_two_turns_are_one(vector: list[float], one: int, two: int, base: float) -> None:
    """So a key that moves needs only the distance, and may move again."""
    at_once = rotate(vector, one + two, base)
    assert rotate(rotate(vector, one, base), two, base) == pytest.approx(
        at_once, abs=1e-9
    )
    back = rotate(rotate(vector, one, base), -one, base)
    assert back == pytest.approx(vector, abs=1e-9)


@QUICK
@given(vector=VECTORS, position=POSITIONS, base=BASES)
def test_a_turn_keeps_the_length_of_each_pair(
    vector: list[float], position: int, base: float
) -> None:
    half = len(vector) // 2
    turned = rotate(vector, position, base)
    for x, y, u, v in zip(
        vector[:half], vector[half:], turned[:half], turned[half:], strict=True
    ):
        assert hypot(u, v) == pytest.approx(hypot(x, y), abs=1e-9)


@QUICK
@given(vector=VECTORS, query=POSITIONS, key=POSITIONS, far=POSITIONS, base=BASES)
def test_attention_depends_on_the_distance_alone(
    vector: list[float], query: int, key: int, far: int, base: float
) -> None:
    other = [number + 1 for number in reversed(vector)]

    def attend(shift: int) -> float:
        q, k = rotate(vector, query + shift, base), rotate(other, key + shift, base)
        return sum(x * y for x, y in zip(q, k, strict=True))

    assert attend(far) == pytest.approx(attend(0), abs=1e-8)
