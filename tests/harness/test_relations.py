"""Each relation derives, from a small program, the program that was worked out by hand;
and a contradiction names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.metamorphic.reference import (
    FAMILIES,
    derive_one,
    execute,
    find_broken_claim,
    find_contradiction,
    list_relations,
)
from lockstep.harness.execution.metamorphic.relations import DETOUR, Derived, make_history
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
    history = make_history(program, trace(program), FAMILIES[program.kind].shadow)
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


def see(*positions: int) -> dict[str, Any]:
    """One row that sees new tokens at these positions."""
    return {"visible": [[(at, DETOUR) for at in positions]]}


TRIMMED = make(  # 0 1 2 3, then 0 1 4, then 0 1 2 5 6
    "layer", {}, "update 4; snapshot 1 s; trim 2; update 1; restore s 3; update 2"
)
KV = make("layer", {}, "update 3; update 1")
NAMED = make("layer", {}, "update 1; update 2 b; state")
ROTATING = make("layer", {"kind": "rotating", "window": 3}, "update 4; update 2")

TWO = {"kind": "causal", "sequences": 2}
ROWS = make("unified", TWO, "forward [0,0,1] [0,1,0]")
SHIFTED = make(
    "unified", TWO, "forward [0,1,2,0] [0,0,0,1]; remove 0 0 1; forward [2] [0]"
)
GOES_ON = make("unified", TWO, "forward [0,0] [0,1]; forward [1] [0]")
GROWN = make("unified", TWO, "forward [0] [0]; forward [1] [0]")
SMALL = make("unified", {"kind": "causal", "capacity": 2}, "forward [0] [0]")
SLIDING = make(
    "unified",
    {"kind": "swa-memory", "window": 2, "memory": 3, "batch": 8, "capacity": 8},
    "forward [0] [0]; forward [1] [0]; forward [2] [0]",
)

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

SIX = "forward [0,1,2,3,4,5] [0,0,0,0,0,0]"

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
        (KV, "return", 1, "merged"),
        "update 3; snapshot 0 r0; update 1; snapshot 3 r1; merge r0 r1 r0; update 1;"
        " restore r0 4; state; trim 1; close r0; update 1",
        {0: 0, 1: 1, 2: 2, 3: 0, 5: 3},
    ),
    ((ROTATING, "mask", 1), "update 6", None),
    (
        (SHIFTED, "recompute", 2),
        "forward [0,1] [0,0]; forward [0] [1]; forward [2] [0]",
        {0: 1, 1: 2, 2: 3, 3: 4},
    ),
    ((ROWS, "cut", 0, 0), "forward [0] [0]; forward [0,1] [1,0]", {0: 0, 1: 1, 2: 2}),
    ((ROWS, "rename", 0), "forward [0,0,1] [1,0,1]", None),
    (
        (GROWN, "return", 1, "copy a sequence"),
        "forward [0] [0]; copy_prefix 0 1 1; forward [1] [1]; remove 1 0 null;"
        " forward [1] [0]",
        {0: 0, 2: 1},
    ),
    ((GOES_ON, "mask", 1), "update 2", {0: 0, 1: 2}),
    ((TRIE, "mask", 4), "begin [1,2,3]; feed 3; close", None),
    (
        (SESSION, "recompute", 3),
        "begin [1,2]; feed 2; close; free; begin [1,2]; feed 2; close;"
        " begin [1,2,3]; feed 1",
        None,
    ),
    (
        (LONG, "pool", 0),
        "remove 0 0 null; forward [0,1,2] [0,0,0]; forward [3] [0]; remove 0 1 2;"
        " forward [3] [0]; remove 0 4 null",
        None,
    ),
]

# (program, relation, step, way), the derived program, its operations → what they answer;
# what the other plain cases promise, mistakes show
CASES: list[tuple[tuple[Any, ...], str, Mapping[int, Any]]] = [
    (
        (SMALL, "room", 0, "becomes full"),
        "forward [0] [0]; forward [1] [0]; forward [2] [0]; remove 0 1 2;"
        " forward [1] [0]",
        {1: {}, 2: {"error": "cache-full"}, 3: {}, 4: see(0, 1)},
    ),
    (  # of the tokens 0 to 6 those from 3 on are kept: position 4 would miss the one at 2
        (SLIDING, "resume", 2, "was dropped"),
        f"{SIX}; forward [6] [0]; can_resume 0 4; remove 0 4 null; forward [4] [0]",
        {2: {"result": True}, 3: {}, 4: see(2, 3, 4)},
    ),
]


@pytest.mark.parametrize(("derivation", "words", "tags"), DERIVED)
def test_a_relation_derives(derivation: Any, words: str, tags: Any) -> None:
    derived = derive(*derivation)
    assert show(derived.program) == words
    assert tags in (None, derived.tags)


@pytest.mark.parametrize(("derivation", "words", "promises"), CASES)
def test_a_plain_case_promises(derivation: Any, words: str, promises: Any) -> None:
    derived = derive(*derivation)
    assert show(derived.program) == words
    assert {claim.derived: claim.answer for claim in derived.claims} == promises
    assert all(claim.is_promise for claim in derived.claims)
    conditions = [claim.derived for claim in derived.claims if claim.is_condition]
    assert conditions == ([2] if "was dropped" in derivation else [])


def test_a_part_of_an_update_claims_its_part_of_the_answer() -> None:
    *_, first, last = derive(TRIMMED, "cut", 5, 0).claims
    assert (first.step, first.derived, last.step, last.derived) == (5, 5, 5, 6)
    assert first.answer == {"visible": [[0, 1, 2, 5]]}
    assert last.answer == {"offset": 5, "visible": [[0, 1, 2, 5, 6]]}
    assert last.rows == range(1, 2)


def test_a_window_shows_its_part_of_full_attention() -> None:
    derived = derive(ROTATING, "mask", 1)
    assert derived.program.kind == "kv"
    full = {"offset": 6, "visible": [[*range(end)] for end in range(1, 7)]}
    assert derived.claims[0].view(full)["visible"] == [[2, 3, 4], [3, 4, 5]]


def test_rows_that_see_each_other_are_not_cut() -> None:
    """The first row comes after the second."""
    with pytest.raises(ValueError, match="not enough values"):
        derive(make("unified", {"kind": "causal"}, "forward [1,0] [0,0]"), "cut", 0, 0)


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


@pytest.mark.parametrize("program", [TRIMMED, SHIFTED, SESSION, TRIE, FORKED])
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
