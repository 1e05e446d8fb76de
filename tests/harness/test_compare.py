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
        ({"visible": [[1, 2], [3]]}, {"visible": [[2, 1], [3]]}),
        ({"tags": [1, 1, 2]}, {"tags": [2, 1, 1]}),
        ({"range": None}, {"range": None}),
    ],
)
def test_order_within_a_row_is_no_difference(
    expected: dict[str, Any], observed: dict[str, Any]
) -> None:
    assert find_difference(expected, observed) is None


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
        ({"visible": [[1, 2]]}, {"visible": [[1, "NaN"]]}, "contents", (2,)),
    ],
)
def test_what_differs(
    expected: dict[str, Any], observed: dict[str, Any], what: str, tokens: tuple[int, ...]
) -> None:
    difference = find_difference(expected, observed)
    assert difference is not None
    assert (difference.what, difference.tokens) == (what, tokens)


@pytest.mark.parametrize(
    ("seen", "columns", "what"),
    [
        ([1], [1, 2], "mask"),  # token 2 came back, and was masked
        ([1], [1], "contents"),  # it did not
        ([1, 2, 3], [1, 2, 3], "mask"),  # token 3 is there for later rows
        ([1, 3], [1, 2, 3], "mask"),
        ([1, 3], [1, 3], "contents"),
        ([1, 2, "NaN"], [1, 2, "NaN"], "contents"),
        ([1, 2, 2], [1, 2, 2], "mask"),
    ],
)
def test_a_wrong_mask_is_told_from_wrong_contents(
    seen: list[Any], columns: list[Any], what: str
) -> None:
    observed = {"visible": [seen], "columns": columns}
    difference = find_difference({"visible": [[1, 2]]}, observed)
    assert difference is not None
    assert difference.what == what


def test_the_sentence_says_which_row_and_which_tokens() -> None:
    expected, observed = {"visible": [[0], [0, 1, 2]]}, {"visible": [[0], [0, 2, 7]]}
    difference = find_difference(expected, observed)
    assert difference is not None
    assert difference.message == (
        "row 1 sees tokens 0, 2, 7, but should see tokens 0, 1, 2"
        " (1 is missing; 7 is too much)"
    )
    assert difference.tokens == (1, 7)


@pytest.mark.parametrize(
    ("expected", "observed", "message"),
    [
        ({"error": "cache-full"}, {"offset": 3}, "did not refuse; expected cache-full"),
        (
            {"error": "cache-full"},
            {"error": "shared"},
            "refused with shared; expected cache-full",
        ),
        (
            {"visible": [[0]]},
            {"visible": [["key of token 0, but its value is all zeros"]]},
            "row 0: key of token 0, but its value is all zeros",
        ),
    ],
)
def test_a_sentence_says_what_happened(
    expected: dict[str, Any], observed: dict[str, Any], message: str
) -> None:
    difference = find_difference(expected, observed)
    assert difference is not None
    assert difference.message == message


def test_a_long_row_is_shortened() -> None:
    difference = find_difference({"tags": []}, {"tags": list(range(1000))})
    assert difference is not None
    assert len(difference.message) < 200


def test_a_missing_refusal_is_said_to_be_missing() -> None:
    difference = find_difference({"error": "cache-full"}, {"offset": 1})
    assert difference is not None
    assert difference.what == "error"
    assert difference.message == "did not refuse; expected cache-full"


@pytest.mark.parametrize(
    ("expected", "observed"),
    [
        ({"hit": {"one_of": [0, 4]}}, {"hit": 4}),
        ({"hit": {"between": [0, 4]}, "offset": 3}, {"hit": 2, "offset": 3}),
        ({"visible": {"one_of": [[[1]], [[1, 2]]]}}, {"visible": [[2, 1]]}),
        ({"one_of": [{"error": "shared"}, {"error": "usage"}]}, {"error": "usage"}),
        ({"one_of": [{"error": "shared"}, {}]}, {}),
        ({"one_of": [{"offset": 1}, {"offset": {"between": [5, 6]}}]}, {"offset": 6}),
    ],
)
def test_an_allowed_value_agrees(
    expected: dict[str, Any], observed: dict[str, Any]
) -> None:
    assert find_difference(expected, observed) is None


@pytest.mark.parametrize(
    ("expected", "observed", "what", "message"),
    [
        ({"hit": {"one_of": [0, 4]}}, {"hit": 5}, "result", "hit is 5, allowed: 0 or 4"),
        (
            {"size": {"between": [0, 4]}},
            {"size": 5},
            "size",
            "size is 5, allowed: 0 to 4",
        ),
        ({"hit": {"between": [0, 4]}}, {}, "result", "hit is none, allowed: 0 to 4"),
        (
            {"visible": {"one_of": [[[1]], [[2]]]}},
            {"visible": [[3]], "layers": [{"visible": [[3]]}]},
            "contents",
            "visible is [[3]], allowed: [[1]] or [[2]]",
        ),
        (
            {"one_of": [{"offset": 1}, {"error": "shared"}]},
            {"offset": 2},
            "offset",
            "offset is 2, not 1; also allowed: {'error': 'shared'}",
        ),
        (
            {"one_of": [{"offset": 1}, {"error": "shared"}]},
            {"error": "usage"},
            "error",
            "it refused (usage error); also allowed: {'error': 'shared'}",
        ),
        ({"hit": {"between": [0, 4]}}, {"error": "no"}, "error", "it refused (no error)"),
    ],
)
def test_a_value_that_is_not_allowed_differs(
    expected: dict[str, Any], observed: dict[str, Any], what: str, message: str
) -> None:
    difference = find_difference(expected, observed)
    assert difference is not None
    assert difference.what == what
    assert difference.message == message


def test_an_allowed_value_in_a_later_layer_is_compared_too() -> None:
    expected = {"size": {"between": [0, 4]}}
    observed = {"size": 1, "layers": [{"size": 4}, {"size": 5}]}
    difference = find_difference(expected, observed)
    assert difference is not None
    assert difference.message == "size is 5, allowed: 0 to 4"
