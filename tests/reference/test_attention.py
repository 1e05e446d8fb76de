"""Softmax attention, by cases that were worked out by hand."""

from __future__ import annotations

from math import log

import pytest

from lockstep.reference.attention import compute_attention


@pytest.mark.parametrize(
    ("query", "keys", "values", "result"),
    [
        # One token: its value, whatever the score.
        ([3.0], [[5.0]], [[7.0, -1.0]], [7.0, -1.0]),
        # Equal scores: the mean.
        ([0.0, 0.0], [[1.0, 2.0], [3.0, 4.0]], [[2.0], [6.0]], [4.0]),
        # Scores 0 and ln 3: weights 1/4 and 3/4.
        ([1.0], [[0.0], [log(3)]], [[0.0, 4.0], [4.0, 8.0]], [3.0, 7.0]),
        # Four dimensions: the score 2 ln 2 is halved; weights 1/3 and 2/3.
        ([2.0, 0, 0, 0], [[0.0] * 4, [log(2), 9, 9, 9]], [[3.0], [6.0]], [5.0]),
        # Scores 0, ln 2 and ln 5: weights 1/8, 2/8 and 5/8.
        ([1.0], [[0.0], [log(2)], [log(5)]], [[8.0], [16.0], [24.0]], [20.0]),
        # Scores of thousands neither overflow nor vanish.
        ([1.0], [[3000.0], [3000.0], [-3000.0]], [[1.0], [2.0], [99.0]], [1.5]),
        # No value dimensions: nothing.
        ([1.0], [[1.0], [2.0]], [[], []], []),
    ],
)
def test_attention(
    query: list[float],
    keys: list[list[float]],
    values: list[list[float]],
    result: list[float],
) -> None:
    assert compute_attention(query, keys, values) == pytest.approx(result, abs=1e-12)


def test_keys_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compute_attention([1.0, 2.0], [[1.0]], [[1.0]])
