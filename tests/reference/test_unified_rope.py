"""The rotation of keys, against complex numbers."""

from __future__ import annotations

from cmath import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.rope import rotate

VECTORS = st.sampled_from((2, 4, 6, 8)).flatmap(
    lambda dim: st.lists(st.floats(-8, 8), min_size=dim, max_size=dim)
)
BASES = st.sampled_from((7.0, 100.0, 10_000.0, 500_000.0))


@settings(max_examples=60, deadline=None, database=None)
@given(vector=VECTORS, position=st.integers(-500, 500), base=BASES)
def test_a_pair_turns_as_a_complex_number(
    vector: list[float], position: int, base: float
) -> None:
    """So two turns are one, lengths stay, and attention depends on the distance alone."""
    half = len(vector) // 2
    turned = rotate(vector, position, base)
    for pair, (x, y) in enumerate(zip(vector[:half], vector[half:], strict=True)):
        angle = position / base ** (pair / half)
        assert complex(turned[pair], turned[half + pair]) == pytest.approx(
            complex(x, y) * exp(1j * angle), abs=1e-9
        )


@pytest.mark.parametrize(
    ("vector", "position", "base", "turned"),
    [
        # cos 1 and sin 1; cos 0.01 and sin 0.01 for the slower pair
        ([1, 0, 0, 2], 1, 1e4, [0.5403023, -2 * 0.0099998, 0.8414710, 2 * 0.9999500]),
        ([1, 0], 2, 1e4, [-0.4161468, 0.9092974]),
        ([0, 1, 0, 0], -7, 49, [0, 0.5403023, 0, -0.8414710]),  # -7 / 49 ** (2 / 4)
        ([1, 2, 3, 4], 0, 49, [1, 2, 3, 4]),
    ],
)
def test_numbers_worked_out_by_hand(
    vector: list[float], position: int, base: float, turned: list[float]
) -> None:
    assert rotate(vector, position, base) == pytest.approx(turned, abs=1e-6)
