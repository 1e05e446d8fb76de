"""Program files of prefix caches: what is refused, with which words, what is only
skipped, and what the reference answers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.core.document import parse_json
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program, parse_program, trace

BEGIN = {"op": "begin", "tokens": [1, 2]}


def parse(ops: list[dict[str, Any]], **config: Any) -> Program:
    document = {"format": "lockstep/1", "contract": "prefix", "ops": ops}
    return parse_program({**document, "config": {"kind": "session", **config}}, "here")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"limit": 3}, "limit belongs to trie, not to session"),
        ({"kind": "trie", "slots": 2}, "slots belongs to slots, not to trie"),
        ({"layers": ["rotating"]}, '"rotating" is not a layer; write rotating:window'),
        ({"layers": ["kv:3"]}, '"kv:3" is not a layer; write kv'),
        ({"layers": ["swa:2"]}, "session has no layer of kind swa"),
        ({"layers": ["rotating:0"]}, "a window of 0"),
        ({"layers": ["ring:4"]}, "layers[0]"),
        ({"layers": []}, "layers"),
        ({"layers": [4]}, "layers[0]"),
        ({"kind": "slots"}, "slots has no layer of kind kv"),
        ({"kind": "slots", "layers": [None]}, "slots need a cache in every layer"),
        (
            {"kind": "slots", "layers": ["causal"], "keep": 4, "context": 4},
            "keep 4 must be less than context 4",
        ),
        ({"kind": "slots", "layers": ["causal"], "slots": 99}, "99 is greater than"),
        (
            {"kind": "slots", "layers": ["swa-memory:4:2"]},
            "memory 2 is smaller than the window of 4",
        ),
        ({"kind": "trie", "limit": -1}, "limit"),
        ({"kind": "queue"}, "kind"),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=r"^here: config") as refused:
        parse([BEGIN], **config)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ({"op": "begin"}, 'the field "tokens" is missing'),
        ({"op": "begin", "tokens": 3}, "tokens: 3 is not of type 'array'"),
        ({"op": "begin", "tokens": [[1]]}, "tokens[0]"),
        ({"op": "begin", "tokens": [1] * 2000}, "has 2000 items; at most 1024"),
        ({"op": "begin", "tokens": [1], "user": "../x"}, "user"),
        ({"op": "feed", "count": -1}, "count"),
        ({"op": "feed", "count": 1, "generate": [[1]]}, "generate[0]"),
        ({"op": "break", "count": 0, "layers": 1}, "count"),
        ({"op": "begn", "tokens": [1]}, "did you mean begin"),
    ],
)
def test_an_operation_that_is_none_is_refused(op: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=r"^here: ops\[0\]") as refused:
        parse([op])
    assert words in str(refused.value)


def test_what_cannot_be_asked_now_is_skipped() -> None:
    feed = {"op": "feed", "count": 1}
    broken = [{"op": "break", "count": 1, "layers": layers} for layers in (1, 0)]
    steps = [
        (feed, "no request is open"),
        (BEGIN, None),
        (broken[0], "all layers would have seen the tokens"),
        (broken[1], None),
        (feed, "the last pass of this request broke off"),
        ({"op": "close"}, None),
    ]
    answers = trace(parse([op for op, _ in steps]))
    assert [answer.get("skipped") for answer in answers] == [why for _, why in steps]


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        ("session", {"op": "limit", "bytes": 3}),
        ("session", {"op": "checkpoint", "offsets": [1]}),
        ("slots", {"op": "count"}),
        ("slots", {"op": "free"}),
    ],
)
def test_what_a_kind_does_not_have_is_skipped(kind: str, op: dict[str, Any]) -> None:
    layers = ["causal"] if kind == "slots" else ["kv"]
    (answer,) = trace(parse([op], kind=kind, layers=layers))
    assert answer == {"skipped": f"a {kind} cache has no {op['op']}"}


def test_what_is_no_integer_stays_what_it_is() -> None:
    """It is the cache that must refuse it, in a saved program too."""
    program = parse([{"op": "begin", "tokens": [1.5]}, {"op": "begin", "tokens": [2.0]}])
    assert [op["tokens"] for op in program.ops] == [[1.5], [2]]
    assert trace(program)[0] == {"error": "usage"}


def test_a_number_without_end_is_no_number() -> None:
    with pytest.raises(UsageError, match="1e400 is not a number of JSON"):
        parse_json('{"ops": [{"op": "begin", "tokens": [1e400]}]}', "here")


def test_long_histories_are_traced_in_seconds() -> None:
    """Nothing in the reference grows with the square of all that is stored."""
    talk = [
        {"op": "begin", "tokens": list(range(400))},
        {"op": "feed", "count": 400},
        {"op": "close"},
        {"op": "limit", "bytes": 10},
        {"op": "begin", "tokens": [1]},
        {"op": "close"},
    ]
    started = time.monotonic()
    answers = trace(parse(talk, kind="trie", interval=1))
    assert answers[2] == {"stored": 400}
    assert time.monotonic() - started < 5


def test_a_trace_says_what_remains_and_what_every_layer_holds() -> None:
    program = parse(
        [
            {"op": "begin", "tokens": [7, 8, 9]},
            {"op": "feed", "count": 9, "generate": [5]},
            {"op": "close"},
            {"op": "begin", "tokens": [7, 8, 1]},
        ],
        layers=["kv", None, "rotating:4"],
    )
    rows = {"visible": [[0], [0, 1], [0, 1, 2]]}
    assert trace(program) == [
        {"remaining": [7, 8, 9], "offsets": [0, None, 0]}
        | {"caches": [{"tags": []}, {}, {"tags": []}]},
        {"offsets": [3, None, 3], "caches": [rows, {}, rows]},
        {"stored": 3},
        {"remaining": [1], "offsets": [2, None, 2]}
        | {"caches": [{"tags": [0, 1]}, {}, {"tags": [0, 1]}]},
    ]


def test_the_same_token_behind_the_same_tokens_has_one_tag() -> None:
    """Computed again it is the same; behind others it is not."""
    rest = [{"op": "feed", "count": 2}, {"op": "close"}]
    ops = [BEGIN, *rest, {"op": "begin", "tokens": [2, 2]}, *rest, BEGIN, *rest]
    answers = trace(parse(ops, layers=["state"]))
    rows = [answers[at]["caches"][0]["visible"][-1] for at in (1, 4, 7)]
    assert rows == [[0, 1], [2, 3], [0, 1]]


def test_slots_answer_with_what_the_slot_holds() -> None:
    ops = [
        {"op": "begin", "tokens": [1, 2], "user": "b"},
        {"op": "feed", "count": 1, "user": "b"},
        {"op": "begin", "tokens": [1, 3]},
        {"op": "begin", "tokens": [4], "user": "c"},
        {"op": "cancel", "user": "b"},
    ]
    program = parse(ops, kind="slots", layers=["causal"], slots=2, several_users=True)
    assert trace(program) == [
        {"slot": 0, "offsets": [0], "tokens": [], "remaining": [1, 2]},
        {"positions": [0], "visible": [[(0, 0)]], "offsets": [1]}
        | {"tokens": [1], "remaining": [2]},
        {"slot": 1, "offsets": [1], "tokens": [1], "remaining": [3]},
        {"error": "no-slot"},
        {"stored": 1, "offsets": [1], "tokens": [1], "remaining": []},
    ]


def test_every_operation_says_what_it_does() -> None:
    part = {"count": 2, "layers": 1}
    said = {
        "begin": ({"tokens": [1, 2], "user": "b"}, "user b: begin [1 2]"),
        "feed": ({"count": 3, "generate": [5]}, "feed 3 tokens, generate [5]"),
        "close": ({}, "close"),
        "cancel": ({"user": "c"}, "user c: cancel"),
        "break": (part, "a pass of 2 tokens breaks off after 1 layer"),
        "refuse": ({"layers": [0, 2]}, "layers 0, 2 refuse to go back the next time"),
        "checkpoint": ({"offsets": [3]}, "capture the next request after 3 tokens"),
        "count": ({}, "count what is stored"),
        "limit": ({"bytes": None}, "store any number of bytes from now on"),
        "free": ({}, "free everything"),
        "open": ({"context": 2, "keep": 3}, "open a cache with context 2, keep 3"),
        "reserve": ({"slot": 1, "count": 2}, "reserve 2 tokens in slot 1"),
        "commit": ({"slot": 1, "count": 2}, "commit 2 tokens in slot 1"),
    }
    assert said.keys() == PREFIX.operations.keys()
    for name, (fields, words) in said.items():
        operation = PREFIX.operations[name]
        assert operation.describe({**operation.get_defaults(), **fields}) == words
