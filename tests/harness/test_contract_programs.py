"""Program files of unified and prefix caches: what is refused, with which words, what is
only skipped, and what the reference answers."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.core.document import parse_json
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import trace, why_too_large
from tests.harness.building import forward, make, update

BEGIN = {"op": "begin", "tokens": [1, 2]}
CLOSE = {"op": "close"}

make_unified = partial(make, contract="unified", kind="causal")
make_prefix = partial(make, contract="prefix", kind="session")


def feed(count: int, **more: Any) -> dict[str, Any]:
    return {"op": "feed", "count": count, **more}


WRAPPER: dict[str, Any] = {"kind": "wrapper"}
SLOTS: dict[str, Any] = {"kind": "slots", "layers": ["causal"]}
LARGE = {"sequences": 32, "heads": 64, "key_dim": 1024, "value_dim": 1024, "layers": 3}

UNIFIED: list[dict[str, Any]] = [
    {"kind": "swa"},
    {"kind": "swa-memory", "window": 2},
    {"kind": "chunked"},
    {"window": 2},
    {"slots": 2},
    {"kind": "swa-memory", "window": 4, "memory": 2},
    {"kind": "swa-memory", "window": 0, "memory": 2},
    WRAPPER,
    {"caches": [{"kind": "causal"}]},
    {**WRAPPER, "caches": [WRAPPER]},
    {**WRAPPER, "caches": [{"kind": "swa"}]},
    {**WRAPPER, "caches": [{"kind": "causal"}] * 5},
    {"key_dim": 3},
    {"capacity": 65_536, "heads": 64, "key_dim": 64},
    {"kind": "recurrent", **LARGE},
]

LIST: dict[str, Any] = {"kind": "batch-list"}
OPEN: dict[str, Any] = {"op": "open", "rows": 1}
KV, WIDE = {"kind": "batch-kv"}, {"kind": "batch-kv", "heads": 64, "key_dim": 1024}

BATCHED = [
    LIST,
    {"kind": "batch-kv", "caches": [KV]},
    {**LIST, "caches": [LIST]},
    {**LIST, "caches": [KV] * 5},
    {**LIST, "caches": [KV], "window": 2},
    {**LIST, "caches": [KV, {"kind": "batch-rotating"}]},
    {**LIST, "caches": [{**KV, "window": 2}]},
]

SESSION: list[dict[str, Any]] = [
    {"limit": 3},
    {"kind": "trie", "slots": 2},
    {"layers": ["rotating"]},
    {"layers": ["kv:3"]},
    {"layers": ["swa:2"]},
    {"layers": ["rotating:0"]},
    {"layers": []},
    {"kind": "slots"},
    {**SLOTS, "layers": [None]},
    {**SLOTS, "keep": 4, "context": 4},
    {**SLOTS, "layers": ["swa-memory:4:2"]},
    {"kind": "trie", "limit": -1},
]
LAYER: list[dict[str, Any]] = [
    {"window": 4},
    {"keep": 1},
    {"record": True},
    {"kind": "rotating"},
    {"kind": "rotating", "window": 4, "keep": 4},
    {"kind": "rotating", "window": 4, "chunk": 2},
    {"kind": "state", "conv_width": 1, "window": 1},
]
make_batched = partial(make, contract="batched")


@pytest.mark.parametrize(
    ("build", "op", "configs"),
    [
        (make_unified, forward([0], [0]), UNIFIED),
        (make_prefix, BEGIN, SESSION),
        (make_batched, OPEN, BATCHED),
        (make, update(1), LAYER),
    ],
    ids=["unified", "prefix", "batched", "layer"],
)
def test_a_config_that_breaks_a_rule_is_refused(
    build: Any, op: Any, configs: list[dict[str, Any]], snapshot: Any
) -> None:
    said = []
    for config in configs:
        with pytest.raises(UsageError, match=r"^here: config") as refused:
            build(op, **config)
        said.append(f"{config} {refused.value}")
    assert said == snapshot


def test_the_numbers_of_all_parts_of_a_list_count() -> None:
    update = {"op": "update", "length": 16}
    make(OPEN, update, contract="batched", **LIST, caches=[KV, WIDE])
    with pytest.raises(UsageError, match="K and V would hold 16842752 numbers"):
        make(OPEN, update, contract="batched", **LIST, caches=[WIDE, WIDE])


NO_OPERATIONS: tuple[dict[str, Any], ...] = (
    {"op": "begin", "tokens": 3},
    {"op": "begin", "tokens": [[1]]},
    {"op": "begin", "tokens": [1] * 3000},
    {**BEGIN, "user": "../x"},
    feed(-1),
    feed(1, generate=[[1]]),
    {"op": "break", "count": 0, "layers": 1},
)


def test_an_operation_that_is_none_is_refused(snapshot: Any) -> None:
    said = []
    for op in NO_OPERATIONS:
        with pytest.raises(UsageError, match=r"^here: ops\[0\]") as refused:
            make_prefix(op)
        said.append(str(refused.value))
    assert said == snapshot


# --- what is skipped --------------------------------------------------------------------


def test_what_cannot_be_saved_is_skipped() -> None:
    save, load = {"op": "save", "into": "x"}, {"op": "load", "from": "x"}
    answers = trace(make_unified(save, load, kind="encoder"))
    assert answers[0] == {"skipped": "caches of the kind encoder are not saved"}
    assert answers[1] == {"skipped": "nothing was saved as x"}


def test_what_cannot_be_asked_now_is_skipped() -> None:
    broken = [{"op": "break", "count": 1, "layers": layers} for layers in (1, 0)]
    steps = [
        (feed(1), "no request is open"),
        (BEGIN, None),
        (broken[0], "all layers would have seen the tokens"),
        (broken[1], None),
        (feed(1), "the last pass of this request broke off"),
        (CLOSE, None),
    ]
    answers = trace(make_prefix(*(op for op, _ in steps)))
    assert [answer.get("skipped") for answer in answers] == [why for _, why in steps]


@pytest.mark.parametrize(
    ("config", "op"),
    [
        ({"kind": "session"}, {"op": "limit", "bytes": 3}),
        ({"kind": "session"}, {"op": "checkpoint", "offsets": [1]}),
        (SLOTS, {"op": "count"}),
        (SLOTS, {"op": "free"}),
    ],
)
def test_what_a_kind_lacks_is_skipped(config: dict[str, Any], op: dict[str, Any]) -> None:
    (answer,) = trace(make_prefix(op, **config))
    assert answer == {"skipped": f"a {config['kind']} cache has no {op['op']}"}


# --- numbers ----------------------------------------------------------------------------


def test_whole_floats_are_ints_however_deep() -> None:
    caches = [{"kind": "causal", "capacity": 4.0}]
    program = make_unified(forward([2.0], [0]), **WRAPPER, caches=caches)  # type: ignore
    assert repr(program.config["caches"]) == "[{'kind': 'causal', 'capacity': 4}]"
    assert repr(program.ops[0]["positions"]) == "[2]"


def test_what_is_no_integer_stays_what_it_is() -> None:
    """It is the cache that must refuse it, in a saved program too."""
    program = make_prefix(*({"op": "begin", "tokens": [token]} for token in (1.5, 2.0)))
    assert [op["tokens"] for op in program.ops] == [[1.5], [2]]
    assert trace(program)[0] == {"error": "usage"}


def test_a_number_without_end_is_no_number() -> None:
    with pytest.raises(UsageError, match="1e400 is not a JSON number"):
        parse_json('{"ops": [{"op": "begin", "tokens": [1e400]}]}', "here")


def test_no_program_writes_more_tokens_than_its_values_tell_apart() -> None:
    """Tags are read from values, whatever the keys are."""
    ops = [forward([0] * 4, [0] * 4)] * 5
    assert why_too_large(make_unified(*ops, value_dim=2)) is None
    with pytest.raises(UsageError, match="writes 20 tokens; at most "):
        make_unified(*ops, value_dim=1)


def test_long_histories_are_traced_in_seconds() -> None:
    """Nothing in the reference grows with the square of all that is stored."""
    long = {"op": "begin", "tokens": list(range(400))}
    limit = {"op": "limit", "bytes": 10}
    ops = [long, feed(400), CLOSE, limit, {"op": "begin", "tokens": [1]}, CLOSE]
    started = time.process_time()
    answers = trace(make_prefix(*ops, kind="trie", interval=1))
    assert answers[2] == {"stored": 400}
    assert time.process_time() - started < 30


# --- what the reference answers ---------------------------------------------------------


def test_a_trace_says_what_remains_and_what_every_layer_holds() -> None:
    program = make_prefix(
        {"op": "begin", "tokens": [7, 8, 9]},
        feed(9, generate=[5]),
        CLOSE,
        {"op": "begin", "tokens": [7, 8, 1]},
        layers=["kv", None, "rotating:4"],
    )
    rows = {"visible": [[0], [0, 1], [0, 1, 2]]}
    none, two = {"tags": []}, {"tags": [0, 1]}
    begun = {"remaining": [7, 8, 9], "offsets": [0, None, 0], "caches": [none, {}, none]}
    again = {"remaining": [1], "offsets": [2, None, 2], "caches": [two, {}, two]}
    fed = {"offsets": [3, None, 3], "caches": [rows, {}, rows]}
    assert trace(program) == [begun, fed, {"stored": 3}, again]


def test_the_same_token_behind_the_same_tokens_has_one_tag() -> None:
    """Computed again it is the same; behind others it is not."""
    rest = [feed(2), CLOSE]
    ops = [BEGIN, *rest, {"op": "begin", "tokens": [2, 2]}, *rest, BEGIN, *rest]
    answers = trace(make_prefix(*ops, layers=["state"]))
    rows = [answers[at]["caches"][0]["visible"][-1] for at in (1, 4, 7)]
    assert rows == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("interval", "shared", "kept"), [(None, 1, 0), (1, 2, 2), (2, 1, 1), (2, 2, 0)]
)
def test_slots_keep_states_at_intervals(
    interval: int | None, shared: int, kept: int
) -> None:
    """A state has checkpoints after the first token, and after `interval` more tokens."""
    ops = [{"op": "begin", "tokens": [1, 2, 3]}, feed(1), feed(1), feed(1), CLOSE]
    ops.append({"op": "begin", "tokens": [*[1, 2, 3][:shared], 9]})
    program = make_prefix(*ops, kind="slots", layers=["recurrent"], interval=interval)
    assert trace(program)[-1]["offsets"] == [kept]


def test_slots_answer_with_what_the_slot_holds() -> None:
    program = make_prefix(
        {**BEGIN, "user": "b"},
        feed(1, user="b"),
        {"op": "begin", "tokens": [1, 3]},
        {"op": "begin", "tokens": [4], "user": "c"},
        {"op": "cancel", "user": "b"},
        **SLOTS,
        slots=2,
        several_users=True,
    )
    one = {"offsets": [1], "tokens": [1]}
    assert trace(program) == [
        {"slot": 0, "offsets": [0], "tokens": [], "remaining": [1, 2]},
        {**one, "positions": [0], "visible": [[(0, 0)]], "remaining": [2]},
        {**one, "slot": 1, "remaining": [3]},
        {"error": "no-slot"},
        {**one, "stored": 1, "remaining": []},
    ]


FIELDS: dict[str, dict[str, Any]] = {
    "begin": {"tokens": [1, 2], "user": "b"},
    "feed": {"count": 3, "generate": [5]},
    "cancel": {"user": "c"},
    "break": {"count": 2, "layers": 1},
    "refuse": {"layers": [0, 2]},
    "checkpoint": {"offsets": [3]},
    "overrun": {"count": 2},
    "limit": {"bytes": None},
    "open": {"context": 2, "keep": 3},
    "reserve": {"slot": 1, "count": 2},
    "commit": {"slot": 1, "count": 2},
}


def test_every_operation_says_what_it_does(snapshot: Any) -> None:
    assert snapshot == {
        name: operation.describe({**operation.get_defaults(), **FIELDS.get(name, {})})
        for name, operation in PREFIX.operations.items()
    }
