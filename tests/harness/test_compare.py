"""Expected against observed: what is said to differ, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("expected", "observed", "what", "tokens"),
    [
        ({"offset": 3}, {"offset": 4}, "offset", ()),
        ({"offset": 3}, {}, "offset", ()),
        ({"size": 3}, {"size": 0}, "size", ()),
        ({"ok": True}, {"ok": False}, "result", ()),
        ({"ok": True}, {"ok": None}, "result", ()),
        ({"range": [0, 2]}, {"range": None}, "result", ()),
        ({"trimmed": 2, "offset": 1}, {"trimmed": 1, "offset": 2}, "result", ()),
        ({"ranges": [[0, 2]]}, {"ranges": []}, "result", ()),
        ({"tags": [1, 2]}, {"tags": [1]}, "contents", (2,)),
        ({"tags": [1]}, {"tags": [1, 1]}, "contents", (1,)),
        ({"tags": [1]}, {"tags": [1, "NaN"]}, "contents", ()),
        ({"tags": [1]}, {}, "contents", (1,)),
        ({"visible": [[1], [1, 2]]}, {"visible": [[1]]}, "mask", ()),
        ({"visible": [[1]]}, {"visible": [[1, 1]]}, "contents", (1,)),
        (TWO, {"visible": [[1, "NaN"]]}, "contents", (2,)),
        (TWO, see(1, columns=[1, 2]), "mask", (2,)),  # token 2 came back, and was masked
        (TWO, see(1, columns=[1]), "contents", (2,)),  # it did not
        (TWO, see(1, 2, 3, columns=[1, 2, 3]), "mask", (3,)),  # is there for later rows
        (TWO, see(1, 3, columns=[1, 2, 3]), "mask", (2, 3)),
        (TWO, see(1, 3, columns=[1, 3]), "contents", (2, 3)),
        (TWO, see(1, 2, "NaN", columns=[1, 2, "NaN"]), "contents", ()),
        (TWO, see(1, 2, "pad 0.0", columns=["pad 0.0", 1, 2]), "mask", ()),
        (TWO, see(1, 2, 2, columns=[1, 2, 2]), "mask", (2,)),
    ],
)
def test_what_differs(
    expected: dict[str, Any], observed: dict[str, Any], what: str, tokens: tuple[int, ...]
) -> None:
    difference = find_difference(expected, observed)
    assert difference is not None
    assert (difference.what, difference.tokens) == (what, tokens)


FULL = {"error": "cache-full"}
CHOICE = {"one_of": [{"offset": 1}, {"error": "shared"}]}
ALSO = "also allowed: shared"
RIGHT = [{"visible": [[1]]}, {"visible": [[1, 2]]}, {"visible": [[2]]}, {}]
SIZE = {"size": {"between": [0, 4]}}
LATER = {"size": 1, "layers": [{"size": 4}, {"size": 5}]}
ROW = (
    "row 1 sees tokens 0, 2, 7, but should see tokens 0, 1, 2"
    " (1 is missing; 7 is too much)"
)
ZEROS = "key of token 0, but its value is all zeros"
OFF = "V of token 1 is off by 0.0031, allowed 0"
ROWS = {"visible": [[3]], "layers": [{"visible": [[3]]}]}


@pytest.mark.parametrize(
    ("expected", "observed", "what", "message"),
    [
        (FULL, {"offset": 3}, "error", "did not refuse; expected cache-full"),
        (FULL, {"error": "shared"}, "error", "refused with shared; expected cache-full"),
        ({"visible": [[0]]}, {"visible": [[ZEROS]]}, "contents", f"row 0: {ZEROS}"),
        ({"visible": [[0, 1]]}, {"visible": [[0, OFF]]}, "contents", f"row 0: {OFF}"),
        ({"tags": [0, 1]}, {"tags": [0, OFF]}, "contents", OFF),
        ({"visible": [[0], [0, 1, 2]]}, {"visible": [[0], [0, 2, 7]]}, "contents", ROW),
        ({"hit": {"one_of": [0, 4]}}, {"hit": 5}, "result", "hit is 5, allowed: 0 or 4"),
        (SIZE, {"size": 5}, "size", "size is 5, allowed: 0 to 4"),
        ({"hit": {"between": [0, 4]}}, {}, "result", "hit is none, allowed: 0 to 4"),
        (
            {"visible": {"one_of": [[[1]], [[2]]]}},
            ROWS,
            "contents",
            "visible is [[3]], allowed: [[1]] or [[2]]",
        ),
        (CHOICE, {"offset": 2}, "offset", f"offset is 2, not 1; {ALSO}"),
        (CHOICE, {"error": "usage"}, "error", f"it refused (usage error); {ALSO}"),
        (
            {"one_of": RIGHT},
            {"error": "shared"},
            "error",
            "it refused (shared error); also allowed: other tokens or done",
        ),
        ({"hit": {"between": [0, 4]}}, {"error": "no"}, "error", "it refused (no error)"),
        (SIZE, LATER, "size", "size is 5, allowed: 0 to 4"),
    ],
)
def test_a_sentence_says_what_happened(
    expected: dict[str, Any], observed: dict[str, Any], what: str, message: str
) -> None:
    difference = find_difference(expected, observed)
    assert difference is not None
    assert (difference.what, difference.message) == (what, message)


def test_a_long_row_is_shortened() -> None:
    difference = find_difference({"tags": []}, {"tags": list(range(1000))})
    assert difference is not None
    assert len(difference.message) < 200


@pytest.mark.parametrize(
    ("expected", "observed", "message"),
    [
        (
            {"visible": [[1], [2, 3]]},
            {"visible": [[1], [2]], "where": "row 1"},
            "row 1, query 1 sees token 2, but should see tokens 2, 3 (3 is missing)",
        ),
        (
            {"visible": [[1]]},
            {"visible": [["V of token 1 is off by 0.1"]], "where": "row 1"},
            "row 1, query 0: V of token 1 is off by 0.1",
        ),
        ({"offset": 1}, {"offset": 2, "where": "row 1"}, "row 1: offset is 2, not 1"),
        (
            {"caches": [{"visible": [[1]]}]},
            {"caches": [{"visible": [[]], "where": "row 0"}], "where": "part 2"},
            "part 2, row 0, query 0 sees nothing, but should see token 1 (1 is missing)",
        ),
    ],
)
def test_the_place_is_said_from_the_whole_to_its_part(
    expected: dict[str, Any], observed: dict[str, Any], message: str
) -> None:
    difference = find_difference(expected, observed, "query {}".format)
    assert difference is not None and difference.message == message
