"""Each relation derives, from a small program, the program that was worked out by hand;
and a contradiction names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lockstep.harness.execution.metamorphic.answers import DETOUR
from lockstep.harness.execution.metamorphic.check import (
    FAMILIES,
    derive_one,
    find_contradiction,
    list_relations,
)
from lockstep.harness.execution.metamorphic.claims import find_broken_claim
from lockstep.harness.execution.metamorphic.derived import Derived, make_history
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.programs.walk import trace
from lockstep.reference.kv import KVCache

Ops = Sequence[Mapping[str, Any]]


def make(contract: str, config: Mapping[str, Any], ops: Ops) -> Program:
    document = {"format": "lockstep/1", "contract": contract}
    return parse_program({**document, "config": config, "ops": ops}, "here")


def derive(program: Program, relation: str, choice: Any) -> Derived:
    """What a relation of that name derives by that choice, which it must offer."""
    shadow = FAMILIES[program.kind].shadow
    history = make_history(program, trace(program), shadow)
    (one,) = [one for one in list_relations(program.kind) if one.name == relation]
    assert choice in one.list_choices(history)
    derived = one.derive(history, choice)
    assert derived is not None
    assert find_broken_claim(one, program, derived) is None
    return derived


def show(derived: Derived) -> list[dict[str, Any]]:
    """The operations as they stand in a file."""
    return [dict(op) for op in derived.program.to_json()["ops"]]


def list_claims(derived: Derived) -> list[tuple[int, int]]:
    return [(claim.step, claim.other) for claim in derived.claims]


def list_promises(derived: Derived) -> list[tuple[int, Any]]:
    """(operation of the derived program, what it must answer)"""
    return [(claim.other, claim.answer) for claim in derived.claims if claim.is_promise]


def update(length: int, **more: Any) -> dict[str, Any]:
    return {"op": "update", "length": length, **more}


def snapshot(begin: int, into: str, **more: Any) -> dict[str, Any]:
    return {"op": "snapshot", "from": begin, "into": into, **more}


def restore(name: str, target: int) -> dict[str, Any]:
    return {"op": "restore", "snapshot": name, "target": target}


def close(name: str) -> dict[str, Any]:
    return {"op": "close", "snapshot": name}


def forward(*rows: tuple[int, int], **more: Any) -> dict[str, Any]:
    """Rows of (position, sequence)."""
    positions, sequences = [at for at, _ in rows], [owner for _, owner in rows]
    return {"op": "forward", "positions": positions, "sequences": sequences, **more}


def remove(begin: int, end: int | None, sequence: int = 0) -> dict[str, Any]:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


def copy(source: int, target: int, length: int) -> dict[str, Any]:
    return {"op": "copy_prefix", "source": source, "target": target, "length": length}


def can_resume(position: int) -> dict[str, Any]:
    return {"op": "can_resume", "sequence": 0, "position": position}


def see(*positions: int) -> dict[str, Any]:
    """One row that sees new tokens at these positions."""
    return {"visible": [[(at, DETOUR) for at in positions]]}


def begin(*tokens: int, **more: Any) -> dict[str, Any]:
    return {"op": "begin", "tokens": list(tokens), **more}


def feed(count: int, **more: Any) -> dict[str, Any]:
    return {"op": "feed", "count": count, **more}


CLOSE = {"op": "close"}
FREE = {"op": "free", "cache": "r0"}
GONE = {"op": "free"}
LIMIT = {"op": "limit", "bytes": 0}
TRIMMED = make(
    "layer",
    {"kind": "kv"},
    [
        update(4),  # tokens 0 1 2 3
        snapshot(1, "s"),
        {"op": "trim", "count": 2},
        update(1),  # token 4
        restore("s", 3),  # 0 1 2
        update(2),  # 5 6
    ],
)
RESTORED = make(  # the snapshot of a full cache brings only its own range
    "layer",
    {"kind": "kv"},
    [update(2), snapshot(1, "s"), GONE, update(2), restore("s", 2), {"op": "state"}],
)
KV = make("layer", {"kind": "kv"}, [update(3), update(1)])
STATE = make("layer", {"kind": "state"}, [update(2), update(1)])
NAMED = make("layer", {"kind": "kv"}, [update(1), update(2, cache="b"), {"op": "state"}])
ROTATING = make("layer", {"kind": "rotating", "window": 3}, [update(4), update(2)])
TWO = {"kind": "causal", "sequences": 2}
ROWS = make("unified", TWO, [forward((0, 0), (0, 1), (1, 0))])
SHIFTED = make(
    "unified",
    TWO,
    [
        forward((0, 0), (1, 0), (2, 0), (0, 1)),  # tokens 0 1 2, 3
        remove(0, 1),
        forward((2, 0)),
    ],
)
GOES_ON = make("unified", TWO, [forward((0, 0), (0, 1)), forward((1, 0))])
WIDE = {"batch": 8, "capacity": 8}
GAP = make("unified", {"kind": "causal", **WIDE}, [forward((0, 0)), forward((1, 0))])
SLIDING = make(
    "unified",
    {"kind": "swa-memory", "window": 2, "memory": 3, **WIDE},
    [forward((0, 0)), forward((1, 0)), forward((2, 0))],
)
RECURRENT = make(
    "unified",
    {"kind": "recurrent", "interval": 2},
    [forward((0, 0)), forward((1, 0))],
)
IMAGES = make("unified", {"kind": "encoder"}, [forward((0, 0))])
TOLD = [begin(1, 2), feed(2), CLOSE, begin(1, 2, 3), feed(1)]
TRIE = make("prefix", {"kind": "trie", "layers": ["kv"]}, TOLD)
SESSION = make("prefix", {"kind": "session", "layers": ["kv"]}, TOLD)
SLOTS = {"kind": "slots", "layers": ["causal"]}
LONG = make(
    "prefix",
    {**SLOTS, "context": 4, "keep": 1},
    [begin(1, 2, 3, 4), feed(3), feed(1, generate=[5]), feed(1), CLOSE],
)
FORKED = make(
    "prefix",
    {**SLOTS, "slots": 2, "several_users": True},
    [begin(1, 2, 3), feed(3), CLOSE, begin(1, 2, 4), feed(1), CLOSE],
)
SIX = forward(*((at, 0) for at in range(6)))
BOTH = forward((3, 0), (4, 0), multimodal=[0, 1])

DERIVED: Mapping[str, tuple[Program, str, Any, Ops, Mapping[int, int] | None]] = {
    "tokens that are left": (
        TRIMMED,
        "recompute",
        5,
        [
            update(4, cache="r0"),
            snapshot(1, "s", cache="r0"),
            FREE,
            update(3),
            update(2),
        ],
        {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 5, 8: 6},
    ),
    "a snapshot on live tokens": (
        RESTORED,
        "recompute",
        5,
        [
            update(2, cache="r0"),
            snapshot(1, "s", cache="r0"),
            FREE,
            update(2),
            {"op": "state"},
        ],
        {0: 0, 1: 1, 2: 2, 3: 1},
    ),
    "cut": (KV, "cut", (0, 0), [update(1), update(2), update(1)], None),
    "rename": (
        NAMED,
        "rename",
        0,
        [update(1, cache="b"), update(2), {"op": "state", "cache": "b"}],
        None,
    ),
    "half": (
        KV,
        "return",
        (1, "snapshot of the later half, other tokens, restore"),
        [
            update(3),
            snapshot(1, "r0"),
            update(2),
            restore("r0", 3),
            close("r0"),
            update(1),
        ],
        None,
    ),
    "joined": (
        KV,
        "return",
        (1, "snapshots of all and of one more token, merged, restore"),
        [
            update(3),
            snapshot(0, "r0"),
            update(1),
            snapshot(3, "r1"),
            {"op": "merge", "parent": "r0", "child": "r1", "into": "r0"},
            update(1),
            restore("r0", 4),
            {"op": "state"},
            {"op": "trim", "count": 1},
            close("r0"),
            update(1),
        ],
        {0: 0, 1: 1, 2: 2, 3: 0, 5: 3},
    ),
    "refused": (
        STATE,
        "return",
        (1, "tokens that slid out, or were read, cannot be taken back"),
        [
            update(2),
            snapshot(0, "r0"),
            {"op": "trim", "count": 1},
            restore("r0", 2),
            close("r0"),
            update(1),
        ],
        None,
    ),
    "a window is a mask": (ROTATING, "mask", 1, [update(6)], None),
    "after a shift": (
        SHIFTED,
        "recompute",
        2,
        [forward((0, 0), (1, 0)), forward((0, 1)), forward((2, 0))],
        {0: 1, 1: 2, 2: 3, 3: 4},
    ),
    "halves": (
        ROWS,
        "cut",
        (0, 0),
        [forward((0, 0)), forward((0, 1), (1, 0))],
        {0: 0, 1: 1, 2: 2},
    ),
    "owners": (
        ROWS,
        "cut",
        (0, 1),
        [forward((0, 0), (1, 0)), forward((0, 1))],
        {0: 0, 1: 2, 2: 1},
    ),
    "sequences are names": (
        ROWS,
        "rename",
        0,
        [forward((0, 1), (0, 0), (1, 1))],
        None,
    ),
    "a fork": (
        make("unified", TWO, [forward((0, 0)), forward((1, 0))]),
        "return",
        (1, "a sequence is copied, the copy goes on and is removed"),
        [
            forward((0, 0)),
            copy(0, 1, 1),
            forward((1, 1)),
            remove(0, None, sequence=1),
            forward((1, 0)),
        ],
        {0: 0, 2: 1},
    ),
    "a sequence is a layer": (GOES_ON, "mask", 1, [update(2)], {0: 0, 1: 2}),
    "computed, not reused": (TRIE, "mask", 4, [begin(1, 2, 3), feed(3), CLOSE], None),
    "the last conversation": (
        SESSION,
        "recompute",
        3,
        [begin(1, 2), feed(2), CLOSE, GONE, begin(1, 2), feed(2), CLOSE, *TOLD[3:]],
        None,
    ),
    "slots are calls of the cache below": (
        LONG,
        "pool",
        0,
        [
            remove(0, None),
            forward((0, 0), (1, 0), (2, 0)),
            forward((3, 0)),
            remove(1, 2),
            forward((3, 0)),
            remove(4, None),
        ],
        None,
    ),
    "a fork is a copy": (
        FORKED,
        "pool",
        0,
        [
            remove(0, None),
            forward((0, 0), (1, 0), (2, 0)),
            remove(3, None),
            copy(0, 1, 2),
            remove(2, None, sequence=1),
            forward((2, 1)),
            remove(3, None, sequence=1),
        ],
        None,
    ),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_relation_derives(name: str) -> None:
    program, relation, choice, ops, tags = DERIVED[name]
    derived = derive(program, relation, choice)
    assert show(derived) == list(ops)
    if tags is not None:
        assert derived.tags == tags


CASES: Mapping[str, tuple[Program, str, Any, Ops, Sequence[tuple[int, Any]]]] = {
    "a full cache takes nothing more and keeps nothing of it": (
        make("unified", {"kind": "causal", "capacity": 2}, [forward((0, 0))]),
        "room",
        (0, "a cache that is filled up"),
        [
            forward((0, 0)),
            forward((1, 0)),
            forward((2, 0)),
            remove(1, 2),
            forward((1, 0)),
        ],
        [(1, {}), (2, {"error": "cache-full"}), (3, {}), (4, see(0, 1))],
    ),
    "a copy takes no room": (
        make("unified", {**TWO, "capacity": 2}, [forward((0, 0))]),
        "room",
        (0, "a cache that is filled up"),
        [
            forward((0, 0), (1, 0), (2, 0)),
            copy(0, 1, 3),
            forward((3, 0)),
            forward((4, 0)),
            remove(3, 4),
            forward((3, 0)),
        ],
        [(2, {}), (3, {"error": "cache-full"}), (4, {}), (5, see(0, 1, 2, 3))],
    ),
    "a gap closes": (
        GAP,
        "gap",
        (1, "a sequence that closes a gap"),
        [SIX, remove(1, 3), forward((4, 0))],
        [(1, {}), (2, see(0, 1, 2, 3, 4))],
    ),
    # Of the tokens 0 to 6 those from 3 on are kept: position 4 would miss the one at 2.
    # It is not claimed that nobody may go on there, only what would have to be seen.
    "dropped tokens are not seen again": (
        SLIDING,
        "resume",
        (2, "a sequence that goes back to where its window was dropped"),
        [SIX, forward((6, 0)), can_resume(4), remove(4, None), forward((4, 0))],
        [(2, {"result": True}), (3, {}), (4, see(2, 3, 4))],
    ),
    "a state goes on from its first checkpoint": (
        RECURRENT,
        "resume",
        (1, "a state put aside after the first pass"),
        [
            forward((0, 0)),
            forward((1, 0)),
            can_resume(1),
            remove(1, None),
            forward((1, 0)),
        ],
        [
            (2, {"result": True}),
            (3, {}),
            (4, {**see(0, 1), "states": [[DETOUR, DETOUR]]}),
        ],
    ),
    "the first image": (
        IMAGES,
        "image",
        (0, "a cache that loses the first image of two"),
        [BOTH, {"op": "put"}, remove(3, 4), forward((5, 0))],
        [(3, {"cached": True})],
    ),
    "the last image": (
        IMAGES,
        "image",
        (0, "a cache that loses the last image of two"),
        [BOTH, {"op": "put"}, remove(4, 5), forward((5, 0))],
        [(3, {"cached": False})],
    ),
    "the live conversation stays": (
        TRIE,
        "keep",
        (3, "a trie that may store only what its layers stand on"),
        [begin(1, 2, 3), feed(3), CLOSE, LIMIT, begin(1, 2, 3, 72)],
        [(4, {"remaining": [72]})],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plain_case_promises(name: str) -> None:
    program, relation, choice, ops, promises = CASES[name]
    derived = derive(program, relation, choice)
    assert show(derived) == list(ops)
    assert list_promises(derived) == list(promises)


def test_a_case_may_depend_on_an_answer() -> None:
    asked, *others = derive(*CASES["dropped tokens are not seen again"][:3]).claims
    assert asked.is_condition
    assert not any(claim.is_condition for claim in others)


def test_a_part_of_an_update_claims_its_part_of_the_answer() -> None:
    derived = derive(TRIMMED, "cut", (5, 0))
    assert list_claims(derived)[-2:] == [(5, 5), (5, 6)]
    assert [claim.answer for claim in derived.claims[-2:]] == [
        {"visible": [[0, 1, 2, 5]]},
        {"offset": 5, "visible": [[0, 1, 2, 5, 6]]},
    ]
    assert derived.claims[-1].rows == range(1, 2)


def test_a_window_shows_its_part_of_full_attention() -> None:
    derived = derive(ROTATING, "mask", 1)
    assert derived.program.kind == "kv"
    full = {"offset": 6, "visible": [[*range(end)] for end in range(1, 7)]}
    assert derived.claims[0].view(full)["visible"] == [[2, 3, 4], [3, 4, 5]]


def test_rows_that_see_each_other_are_not_cut() -> None:
    """The first row comes after the second."""
    program = make("unified", {"kind": "causal"}, [forward((1, 0), (0, 0))])
    history = make_history(program, trace(program), FAMILIES["causal"].shadow)
    (cut,) = [one for one in list_relations("causal") if one.name == "cut"]
    assert cut.list_choices(history) == []


def test_a_contradiction_says_what_both_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which relation, which tokens, and what the derived program was."""

    def trim(self: KVCache, count: int) -> int:
        self.keep_below(self.offset - count + 1)
        return count

    monkeypatch.setattr(KVCache, "trim", trim)
    program = make(
        "layer", {"kind": "kv"}, [update(3), {"op": "trim", "count": 1}, update(1)]
    )
    divergence = find_contradiction(program, wanted="layer-kv-update-recompute")
    assert divergence is not None
    assert divergence.get_signature(program) == "layer-kv-update-recompute"
    assert divergence.message == (
        "row 0 sees tokens 0, 1, 2, 3, but should see tokens 0, 1, 3 (2 is too much), as"
        " in fresh caches given the tokens that are left (update with 2 tokens; update"
        " with 1 token)"
    )


@pytest.mark.parametrize("program", [TRIMMED, SHIFTED, SESSION, TRIE, FORKED])
def test_derived_programs_are_the_same_each_time_and_take_turns(program: Program) -> None:
    programs = [derive_one(program, number) for number in range(7)]
    assert programs == [derive_one(program, number) for number in range(7)]
    assert len({one.digest() for one in programs if one}) > 1
