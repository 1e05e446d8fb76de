"""Expected against observed: what is said to differ, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from lockstep.harness.contracts.operation import agrees
from lockstep.harness.execution.compare import find_difference


@pytest.mark.parametrize(
    ("expected", "observed"),
    [
        ({}, {}),
        ({"offset": 3}, {"offset": 3, "columns": [1]}),
        # the order within a row is no difference
        ({"visible": [[1, 2], [3]]}, {"visible": [[2, 1], [3]]}),
        ({"tags": [1, 1, 2]}, {"tags": [2, 1, 1]}),
        ({"range": None}, {"range": None}),
        # where a contract leaves a choice
        ({"hit": {"one_of": [0, 4]}}, {"hit": 4}),
        ({"hit": {"between": [0, 4]}, "offset": 3}, {"hit": 2, "offset": 3}),
        ({"visible": {"one_of": [[[1]], [[1, 2]]]}}, {"visible": [[2, 1]]}),
        ({"one_of": [{"error": "shared"}, {"error": "usage"}]}, {"error": "usage"}),
        ({"one_of": [{"error": "shared"}, {}]}, {}),
        ({"one_of": [{"offset": 1}, {"offset": {"between": [5, 6]}}]}, {"offset": 6}),
    ],
)
def test_what_agrees(expected: dict[str, Any], observed: dict[str, Any]) -> None:
    assert find_difference(expected, observed) is None


def see(*seen: Any, columns: list[Any]) -> dict[str, Any]:
    """One row, and what came back."""
    return {"visible": [[*seen]], "columns": columns}


TWO = {"visible": [[1, 2]]}
FULL = {"error": "cache-full"}
CHOICE = {"one_of": [{"offset": 1}, {"error": "shared"}]}
WHOLE = {"one_of": [{"visible": [[1]]}, {"visible": [[1, 2]]}, {"visible": [[2]]}, {}]}
SIZE = {"size": {"between": [0, 4]}}
LATER = {"size": 1, "layers": [{"size": 4}, {"size": 5}]}
ZEROS = "key of token 0, but its value is all zeros"
OFF = "V of token 1 is off by 0.0031, allowed 0"
ROWS = {"visible": [[3]], "layers": [{"visible": [[3]]}]}
INNER = {"caches": [{"visible": [[]], "where": "row 0"}], "where": "part 2"}

PAIRS = [
    ({"offset": 3}, {"offset": 4}),
    ({"offset": 3}, {}),
    ({"size": 3}, {"size": 0}),
    ({"ok": True}, {"ok": False}),
    ({"ok": True}, {"ok": None}),
    ({"range": [0, 2]}, {"range": None}),
    ({"trimmed": 2, "offset": 1}, {"trimmed": 1, "offset": 2}),
    ({"ranges": [[0, 2]]}, {"ranges": []}),
    ({"tags": [1, 2]}, {"tags": [1]}),
    ({"tags": [1]}, {"tags": [1, 1]}),
    ({"tags": [1]}, {"tags": [1, "NaN"]}),
    ({"tags": [1]}, {}),
    ({"tags": []}, {"tags": list(range(1000))}),
    ({"tags": [0, 1]}, {"tags": [0, OFF]}),
    ({"visible": [[1], [1, 2]]}, {"visible": [[1]]}),
    ({"visible": [[1]]}, {"visible": [[1, 1]]}),
    ({"visible": [[0]]}, {"visible": [[ZEROS]]}),
    ({"visible": [[0, 1]]}, {"visible": [[0, OFF]]}),
    ({"visible": [[0], [0, 1, 2]]}, {"visible": [[0], [0, 2, 7]]}),
    (TWO, {"visible": [[1, "NaN"]]}),
    (TWO, see(1, columns=[1, 2])),  # token 2 came back, and was masked
    (TWO, see(1, columns=[1])),  # it did not
    (TWO, see(1, 2, 3, columns=[1, 2, 3])),  # is there for later rows
    (TWO, see(1, 3, columns=[1, 2, 3])),
    (TWO, see(1, 3, columns=[1, 3])),
    (TWO, see(1, 2, "NaN", columns=[1, 2, "NaN"])),
    (TWO, see(1, 2, "pad 0.0", columns=["pad 0.0", 1, 2])),
    (TWO, see(1, 2, 2, columns=[1, 2, 2])),
    (FULL, {"offset": 3}),
    (FULL, {"error": "shared"}),
    ({"hit": {"one_of": [0, 4]}}, {"hit": 5}),
    (SIZE, {"size": 5}),
    (SIZE, LATER),
    ({"hit": {"between": [0, 4]}}, {}),
    ({"hit": {"between": [0, 4]}}, {"error": "no"}),
    ({"visible": {"one_of": [[[1]], [[2]]]}}, ROWS),
    (CHOICE, {"offset": 2}),
    (CHOICE, {"error": "usage"}),
    (WHOLE, {"error": "shared"}),
    # the tokens that states have read, in order
    ({"states": [[1], [1, 2]]}, {"states": [[1], [2, 1]]}),
    ({"states": [[1], [1, 2]]}, {"states": [[1], [2]]}),
    ({"states": [[1]]}, {"states": [[1], [2]]}),
    # the place, from the whole to its part
    ({"visible": [[1], [2, 3]]}, {"visible": [[1], [2]], "where": "row 1"}),
    ({"visible": [[1]]}, {"visible": [[OFF]], "where": "row 1"}),
    ({"offset": 1}, {"offset": 2, "where": "row 1"}),
    ({"caches": [{"visible": [[1]]}]}, INNER),
]


def test_what_differs_and_how_that_is_said(snapshot: SnapshotAssertion) -> None:
    lines = []
    for expected, observed in PAIRS:
        difference = find_difference(expected, observed, "query {}".format)
        assert difference is not None
        lines.append(f"{difference.what} {difference.tokens[:4]} {difference.message}")
    assert "\n".join(lines) == snapshot


class Equal:
    """Equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("number", [np.int32(3), np.array(3), torch.tensor(3)])
def test_integers_of_other_types(number: Any) -> None:
    for wanted in (3, [3], {"one_of": [2, 3]}, {"between": [1, 4]}):
        got = [number] if isinstance(wanted, list) else number
        assert find_difference({"hit": wanted}, {"hit": got}) is None


WRONG = [3.0, np.float16(3), np.array(3.0), True, np.True_, torch.tensor(True), Equal()]


@pytest.mark.parametrize("number", WRONG, ids=lambda number: type(number).__name__)
def test_equal_values_that_are_not_integers(number: Any) -> None:
    right = 1 if number == 1 else 3
    for wanted in (right, [right], {"one_of": [0, right]}, {"between": [0, 4]}):
        got = [number] if isinstance(wanted, list) else number
        difference = find_difference({"offset": wanted}, {"offset": got})
        assert difference is not None and difference.what == "offset"
        assert f" ({type(number).__name__}, not an integer), " in difference.message


@pytest.mark.parametrize("wanted", [True, None, "shared", False, [None]])
def test_values_that_only_seem_equal(wanted: Any) -> None:
    assert find_difference({"ok": wanted}, {"ok": wanted}) is None
    for got in (Equal(), [Equal()], 1, 0):
        assert find_difference({"ok": wanted}, {"ok": got}) is not None


@pytest.mark.parametrize(
    ("expected", "observed", "wanted"),
    [
        ({"tags": [1, 2]}, {"tags": (1, 2), "offset": 2}, True),
        ({"tags": [1, 2]}, {"tags": [2, 1]}, False),  # the order matters
        ({"tags": [1, 2]}, {"tags": [1]}, False),
        ({"tags": [1]}, {"tags": [1, 2]}, False),
        ({"tags": [1]}, {"tags": 1}, False),
        ({"tags": [1]}, {}, False),
        ({"parts": [{"tags": [1]}]}, {"parts": [1]}, False),
        ({}, {"error": "usage"}, False),
        ({"error": "usage"}, {}, False),
        ({"error": "usage"}, {"error": "shared"}, False),
    ],
)
def test_whole_answers_that_agree(expected: Any, observed: Any, wanted: bool) -> None:
    assert agrees(expected, observed) is wanted
