"""Each relation derives, from a small program, the program that was worked out by hand;
and a contradiction names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.metamorphic.reference import (
    SHADOWS,
    compare,
    derive_one,
    execute,
    find_broken_claim,
    find_contradiction,
    list_relations,
)
from lockstep.harness.execution.metamorphic.relations import Claim, Derived, make_history
from lockstep.harness.execution.metamorphic.rows import LayerShadow, RowShadow
from lockstep.harness.programs.program import Program, parse_program, trace
from lockstep.reference.kv import KVCache


def make(contract: str, config: Mapping[str, Any], words: str) -> Program:
    """A program of operations such as "update 2 b; trim 1": the name of each, and its
    fields in the order of the format."""
    ops = []
    for name, *values in (part.split() for part in words.split("; ")):
        fields = CONTRACTS[contract].operations[name].fields
        pairs = zip(fields, values, strict=False)
        ops.append({"op": name, **{field: read(value) for field, value in pairs}})
    document: dict[str, Any] = {"format": "lockstep/1", "contract": contract}
    document |= {"config": {"kind": "kv", **config}, "ops": ops}
    return parse_program(document, "here")


def read(value: str) -> Any:
    return json.loads(value) if value[0] in "[0123456789" else value


def write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def show(program: Program) -> str:
    """The operations, like those that `make` reads, without fields at their default."""
    return "; ".join(
        " ".join([write(value) for value in op.values()])
        for op in program.to_json()["ops"]
    )


def derive(program: Program, name: str, step: int, way: Any = None) -> Derived:
    """What a relation of that name derives at a step, by a way that it must offer: its
    number, or some of its words."""
    history = make_history(program, trace(program), SHADOWS[program.kind])
    (relation,) = [r for r in list_relations(program.kind) if r.name == name]
    (at,) = [walked for walked in history.steps if walked.number == step]
    state = history.get_state(at)
    ways = list(relation.list_ways(state, at))
    if isinstance(way, int):
        ways = ways[way : way + 1]
    (chosen,) = [x for x in ways if not isinstance(way, str) or way in x]
    derived = relation.derive(history, state, at, chosen)
    assert derived is not None
    assert find_broken_claim(relation, program, derived) is None
    return derived


TRIMMED = make(  # 0 1 2 3, then 0 1 4, then 0 1 2 5 6
    "layer", {}, "update 4; snapshot 1 s; trim 2; update 1; restore s 3; update 2"
)
KV = make("layer", {}, "update 3; update 1")
NAMED = make("layer", {}, "update 1; update 2 b; state")
ROTATING = make("layer", {"kind": "rotating", "window": 3}, "update 4; update 2")

TWO = {"kind": "causal", "sequences": 2}
ROWS = make("unified", TWO, "forward [0,0,1] [0,1,0]; forward [1] [1]")
SHIFTED = make(
    "unified", TWO, "forward [0,1,2,0] [0,0,0,1]; remove 0 0 1; forward [2] [0]"
)
GOES_ON = make("unified", TWO, "forward [0,0] [0,1]; forward [1] [0]")
GROWN = make("unified", TWO, "forward [0] [0]; forward [1] [0]")
TOLD = "begin [1,2]; feed 2; close; begin [1,2,3]; feed 1"
TRIE = make("prefix", {"kind": "trie"}, TOLD)
SESSION = make("prefix", {"kind": "session"}, TOLD)
SLOTS = {"kind": "slots", "layers": ["causal"]}
LONG = make(
    "prefix",
    {**SLOTS, "context": 4, "keep": 1},
    "begin [1,2,3,4]; feed 3; feed 1 [5]; feed 1; close",
)
FORKED = make(
    "prefix",
    {**SLOTS, "slots": 2, "several_users": True},
    "begin [1,2,3]; feed 3; close; begin [1,2,4]; feed 1; close",
)

# (program, relation, step, way), the derived program, its tags → tags of the program
DERIVED: list[tuple[tuple[Any, ...], str, Any]] = [
    (
        (TRIMMED, "recompute", 5),
        "update 4 r0; snapshot 1 s r0; free r0; update 3; update 2",
        {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 5, 8: 6},
    ),
    ((KV, "cut", 0, 0), "update 1; update 2; update 1", None),
    ((NAMED, "rename", 0), "update 1 b; update 2; state b", None),
    (
        (KV, "return", 1, "snapshot"),
        "update 3; snapshot 1 r0; update 2; restore r0 3; close r0; update 1",
        {0: 0, 1: 1, 2: 2, 5: 3},
    ),
    (
        (SHIFTED, "recompute", 2),
        "forward [0,1] [0,0]; forward [0] [1]; forward [2] [0]",
        {0: 1, 1: 2, 2: 3, 3: 4},
    ),
    ((ROWS, "cut", 0, 0), "forward [0] [0]; forward [0,1] [1,0]; forward [1] [1]", None),
    ((ROWS, "rename", 0), "forward [0,0,1] [1,0,1]; forward [1] [0]", None),
    (
        (GROWN, "return", 1, "copy_prefix"),
        "forward [0] [0]; copy_prefix 0 1 1; forward [1] [1]; remove 1 0 null;"
        " forward [1] [0]",
        {0: 0, 2: 1},
    ),
    (
        (SESSION, "recompute", 3),
        "begin [1,2]; feed 2; close; free; begin [1,2]; feed 2; close;"
        " begin [1,2,3]; feed 1",
        None,
    ),
]

WINDOW = {"kind": "swa-memory", "window": 1, "memory": 2, "batch": 2, "capacity": 9}
PAIR = make(
    "unified", {"kind": "causal", "capacity": 2}, "forward [0,1] [0,0]; forward [2] [0]"
)
# a program, its operations → what the tokens say that they must answer
PROMISED: list[tuple[Program, Mapping[int, Any]]] = [
    (KV, {0: {"visible": [[0], [0, 1], [0, 1, 2]]}, 1: {"visible": [[0, 1, 2, 3]]}}),
    (make("layer", {}, "update 3; trim 5"), {1: {"trimmed": 3}}),
    (make("layer", {"kind": "state"}, "update 3; trim 1"), {1: {"trimmed": 0}}),
    (ROTATING, {1: {"visible": [[2, 3, 4], [3, 4, 5]]}}),
    (SHIFTED, {2: {"visible": [[(0, 1), (1, 2), (2, 4)]]}}),
    (PAIR, {1: {"error": "cache-full"}}),
    (  # a pass at position 4 keeps the positions from 2 on, and shows those from 3 on
        make(
            "unified",
            WINDOW,
            "forward [0,1] [0,0]; forward [2,3] [0,0]; forward [4] [0]; can_resume 0 2;"
            " can_resume 0 3",
        ),
        {
            2: {"visible": [[(3, 3), (4, 4)]]},
            3: {"result": False},
            4: {"result": True},
        },
    ),
    (SESSION, {3: {"remaining": [3], "caches": [{"tags": [0, 1]}]}}),
    (TRIE, {4: {"caches": [{"visible": [[0, 1, 2]]}]}}),
    (LONG, {3: {"visible": [[(0, 0), (1, 2), (2, 3), (3, 4)]]}}),
    (FORKED, {3: {"slot": 1}}),
]


@pytest.mark.parametrize(("derivation", "words", "tags"), DERIVED)
def test_a_relation_derives(derivation: Any, words: str, tags: Any) -> None:
    derived = derive(*derivation)
    assert show(derived.program) == words
    assert tags in (None, derived.tags)


@pytest.mark.parametrize(("program", "promises"), PROMISED)
def test_the_tokens_promise(program: Program, promises: Mapping[int, Any]) -> None:
    claims = derive(program, "mask", 0).claims
    assert all(claim.is_promise for claim in claims)
    promised = {claim.step: claim.answer for claim in claims}
    assert {number: promised[number] for number in promises} == promises


def test_a_cut_claims_the_later_answers() -> None:
    claims = derive(TRIMMED, "cut", 0, 0).claims
    assert [(claim.step, claim.derived) for claim in claims] == [
        (number, number + 1) for number in range(1, 6)
    ]


def test_operations_that_read_the_last_pass_are_not_claimed_after_a_cut() -> None:
    program = make(
        "unified", {"kind": "causal"}, "forward [0,1] [0,0]; get; forward [2] [0]"
    )
    assert [claim.step for claim in derive(program, "cut", 0, 0).claims] == [2]


def test_a_contradiction_says_what_both_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which relation, which tokens, and what the derived program was."""

    def trim(self: KVCache, count: int) -> int:
        self.keep_below(self.offset - count + 1)
        return count

    monkeypatch.setattr(KVCache, "trim", trim)
    program = make("layer", {}, "update 3; trim 1; update 1")
    divergence = find_contradiction(program, wanted="layer-kv-update-recompute")
    assert divergence is not None
    assert divergence.get_signature(program) == "layer-kv-update-recompute"
    assert divergence.message == (
        "row 0 sees tokens 0, 1, 2, 3, but should see tokens 0, 1, 3 (2 is too much), as"
        " in new caches with the current tokens (update with 2 tokens; update"
        " with 1 token)"
    )


def test_relations_step_aside_behind_an_operation_that_they_cannot_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What adds, removes or moves tokens in an unknown way is not taken for a mistake."""
    monkeypatch.delattr(RowShadow, "write_trim")
    program = make("layer", {}, "update 4; trim 2; update 2; state; update 3")
    assert find_contradiction(program) is None
    history = make_history(program, trace(program), LayerShadow)
    assert [step.number for step, _ in history.walk()] == [0, 1]


@pytest.mark.parametrize("program", [TRIMMED, SHIFTED, SESSION, TRIE])
def test_derived_programs_are_the_same_each_time_and_take_turns(program: Program) -> None:
    programs = [derive_one(program, number) for number in range(7)]
    assert programs == [derive_one(program, number) for number in range(7)]
    assert len({one.digest() for one in programs if one}) > 1


def test_caches_that_no_token_was_written_to_are_stacked_in_derived_programs() -> None:
    ops = [
        {"op": "update", "length": 2, "cache": "x"},
        {"op": "stack", "caches": ["x", "y"], "cache": "a"},
        {"op": "update", "length": 1, "cache": "a"},
    ]
    document = {"format": "lockstep/1", "contract": "batched", "ops": ops}
    program = parse_program({**document, "config": {"kind": "batch-kv"}}, "here")
    derived = [derive_one(program, number) for number in range(40)]
    assert sum(each is not None for each in derived) > 10


def test_each_derived_program_is_counted_as_a_comparison() -> None:
    program = make("layer", {}, "update 3; trim 1")
    compared = execute(program).comparisons.compared["contents"]
    more = execute(program, every=True).comparisons.compared["contents"]
    assert 0 < compared < more


def test_a_program_that_is_too_large_is_not_compared() -> None:
    program = make("layer", {}, "; ".join(["update 1"] * 3000))
    result = execute(program)
    assert (result.steps, result.skipped) == (0, 3000)
    assert "trace a shorter program" in str(result.why_skipped)


def test_a_derived_program_that_skips_the_step_contradicts() -> None:
    program = make("layer", {}, "update 1")
    difference = compare(program, Claim(0, 0, {"offset": 1}), {}, {"skipped": "no cache"})
    assert difference is not None
    assert difference.what == "result" and "skipped: no cache" in difference.message
