"""What each relation derives from a small program, compared with what was worked out by
hand; and how a contradiction is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lockstep.harness.execution.metamorphic.answers import DETOUR
from lockstep.harness.execution.metamorphic.check import (
    RELATIONS,
    derive_one,
    find_contradiction,
)
from lockstep.harness.execution.metamorphic.derived import Derived
from lockstep.harness.execution.metamorphic.history import make_history
from lockstep.harness.execution.metamorphic.relation import find_broken_claim
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.programs.walk import trace
from lockstep.reference.kv import KVCache

Ops = Sequence[Mapping[str, Any]]


def make(contract: str, config: Mapping[str, Any], ops: Ops) -> Program:
    document = {"format": "lockstep/1", "contract": contract}
    return parse_program({**document, "config": config, "ops": ops}, "here")


def derive(program: Program, relation: str, choice: Any) -> Derived:
    """What a relation of that name derives by that choice, which it must offer."""
    history = make_history(program, trace(program))
    for one in RELATIONS[program.contract]:
        if one.name == relation and choice in one.list_choices(history):
            derived = one.derive(history, choice)
            assert derived is not None
            assert find_broken_claim(one, program, derived) is None
            return derived
    raise AssertionError(f"{relation} does not offer {choice}")


def show(derived: Derived) -> list[dict[str, Any]]:
    """The operations as they stand in a file."""
    return [dict(op) for op in derived.program.to_json()["ops"]]


def list_claims(derived: Derived) -> list[tuple[int, int]]:
    return [(claim.step, claim.other) for claim in derived.claims]


def update(length: int, **more: Any) -> dict[str, Any]:
    return {"op": "update", "length": length, **more}


TRIMMED = make(
    "layer",
    {"kind": "kv"},
    [
        update(4),  # tokens 0 1 2 3
        {"op": "snapshot", "from": 1, "into": "s"},
        {"op": "trim", "count": 2},
        update(1),  # token 4
        {"op": "restore", "snapshot": "s", "target": 3},  # 0 1 2
        update(2),  # 5 6
    ],
)


def test_recompute_feeds_what_is_left() -> None:
    derived = derive(TRIMMED, "recompute", 5)
    assert show(derived) == [
        update(4, cache="r0"),
        {"op": "snapshot", "from": 1, "into": "s", "cache": "r0"},
        update(3),
        update(2),
    ]
    assert derived.tags == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 5, 8: 6}
    assert list_claims(derived) == [(5, 3)]


def test_what_was_restored_lies_on_what_is_live_below() -> None:
    """Of a full cache; the snapshot brings only its own range."""
    program = make(
        "layer",
        {"kind": "kv"},
        [
            update(2),
            {"op": "snapshot", "from": 1, "into": "s"},
            {"op": "free"},
            update(2),
            {"op": "restore", "snapshot": "s", "target": 2},
            {"op": "state"},
        ],
    )
    derived = derive(program, "recompute", 5)
    assert [derived.tags[tag] for tag in (2, 3)] == [2, 1]


def test_cut_and_join() -> None:
    derived = derive(TRIMMED, "cut", (5, 1))
    assert show(derived)[-2:] == [update(1), update(1)]
    assert list_claims(derived)[-2:] == [(5, 5), (5, 6)]
    assert [claim.answer for claim in derived.claims[-2:]] == [
        {"visible": [[0, 1, 2, 5]]},
        {"offset": 5, "visible": [[0, 1, 2, 5, 6]]},
    ]
    assert derived.claims[-1].rows == range(1, 2)
    joined = derive(make("layer", {"kind": "kv"}, [update(2), update(1)]), "cut", (1, 0))
    assert show(joined) == [update(3)]
    assert list_claims(joined) == [(0, 0), (1, 0)]


def test_alone_leaves_out_what_follows_from_what_is_left_out() -> None:
    program = make(
        "layer",
        {"kind": "kv"},
        [
            update(2),
            {"op": "clone", "into": "b"},
            update(1),
            update(3, cache="b"),
            {"op": "snapshot", "from": 0, "into": "s"},
            {"op": "restore", "snapshot": "s", "target": 3, "cache": "b"},
            {"op": "view", "cache": "b"},
            {"op": "clone", "into": "b"},
            {"op": "free"},
            update(1),
        ],
    )
    derived = derive(program, "alone", 2)
    assert show(derived) == [
        update(2),
        {"op": "clone", "into": "b"},
        update(3, cache="b"),
        {"op": "free"},
        update(1),
    ]
    assert derived.tags == {0: 0, 1: 1, 2: 3, 3: 4, 4: 5, 5: 6}
    assert list_claims(derived) == [(3, 2), (8, 3), (9, 4)]


def test_swap_and_rename() -> None:
    program = make(
        "layer", {"kind": "kv"}, [update(1), update(2, cache="b"), {"op": "state"}]
    )
    swapped = derive(program, "swap", 1)
    assert show(swapped) == [update(2, cache="b"), update(1), {"op": "state"}]
    assert swapped.tags == {0: 1, 1: 2, 2: 0}
    renamed = derive(program, "rename", 0)
    assert [op.get("cache", "a") for op in show(renamed)] == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("way", "detour"),
    [
        ("trim", [{"op": "trim", "count": 2}, update(2)]),
        (
            "rewind",
            [{"op": "restore", "snapshot": None, "target": 1}, update(2)],
        ),
        (
            "late",
            [
                {"op": "snapshot", "from": 1, "into": "r0"},
                update(2),
                {"op": "restore", "snapshot": "r0", "target": 3},
                {"op": "close", "snapshot": "r0"},
            ],
        ),
        (
            "joined",
            [
                {"op": "snapshot", "from": 0, "into": "r0"},
                update(1),
                {"op": "snapshot", "from": 3, "into": "r1"},
                {"op": "merge", "parent": "r0", "child": "r1", "into": "r0"},
                update(1),
                {"op": "restore", "snapshot": "r0", "target": 4},
                {"op": "state"},
                {"op": "trim", "count": 1},
                {"op": "close", "snapshot": "r0"},
            ],
        ),
    ],
)
def test_return(way: str, detour: Ops) -> None:
    program = make("layer", {"kind": "kv"}, [update(3), update(1)])
    assert show(derive(program, "return", (1, way))) == [update(3), *detour, update(1)]


def test_a_window_is_a_mask() -> None:
    config = {"kind": "rotating", "window": 3}
    program = make("layer", config, [update(4), update(2), {"op": "size"}])
    derived = derive(program, "mask", 1)
    assert derived.program.kind == "kv"
    assert show(derived) == [update(6)]
    full = {"offset": 6, "visible": [[*range(end)] for end in range(1, 7)]}
    assert derived.claims[0].view(full)["visible"] == [[2, 3, 4], [3, 4, 5]]


def forward(*rows: tuple[int, int], **more: Any) -> dict[str, Any]:
    """Rows of (position, sequence)."""
    positions, sequences = [at for at, _ in rows], [owner for _, owner in rows]
    return {"op": "forward", "positions": positions, "sequences": sequences, **more}


TWO = {"kind": "causal", "sequences": 2}


def test_unified_recompute_after_a_shift() -> None:
    program = make(
        "unified",
        TWO,
        [
            forward((0, 0), (1, 0), (2, 0), (0, 1)),  # tokens 0 1 2, 3
            {"op": "remove", "sequence": 0, "begin": 0, "end": 1},
            forward((2, 0)),
        ],
    )
    derived = derive(program, "recompute", 2)
    assert show(derived) == [forward((0, 0), (1, 0)), forward((0, 1)), forward((2, 0))]
    assert derived.tags == {0: 1, 1: 2, 2: 3, 3: 4}


def test_unified_cuts_and_orders() -> None:
    program = make("unified", TWO, [forward((0, 0), (0, 1), (1, 0))])
    halves = derive(program, "cut", (0, "halves"))
    assert show(halves) == [forward((0, 0)), forward((0, 1), (1, 0))]
    assert [claim.rows for claim in halves.claims] == [[0], [1, 2]]
    owners = derive(program, "cut", (0, "owners"))
    assert show(owners) == [forward((0, 0), (1, 0)), forward((0, 1))]
    assert owners.tags == {0: 0, 1: 2, 2: 1}
    assert show(derive(program, "order", 0)) == [forward((1, 0), (0, 1), (0, 0))]


def test_rows_that_see_each_other_are_not_cut() -> None:
    """The first row comes after the second."""
    program = make("unified", {"kind": "causal"}, [forward((1, 0), (0, 0))])
    history = make_history(program, trace(program))
    (cut,) = [one for one in RELATIONS["unified"] if one.name == "cut"]
    assert cut.list_choices(history) == []


def test_unified_alone_keeps_what_shares() -> None:
    """A removal from the middle may fail because of a copy: it depends on both."""
    ops = [
        forward((0, 0), (1, 0)),
        {"op": "copy_prefix", "source": 0, "target": 1, "length": 2},
        {"op": "remove", "sequence": 0, "begin": 0, "end": 1},
        {"op": "can_resume", "sequence": 0, "position": 2},
        forward((2, 0)),
    ]
    assert trace(make("unified", TWO, ops))[2] == {"error": "shared"}
    derived = derive(make("unified", TWO, ops), "alone", 1)
    assert show(derived) == [ops[0], *ops[3:]]
    middle = derive(make("unified", TWO, ops), "alone", 3)
    assert show(middle) == [*ops[:3], ops[4]]


def test_a_removal_in_pieces() -> None:
    removal = {"op": "remove", "sequence": 0, "begin": 1, "end": 4}
    rows = forward((0, 0), (1, 0), (2, 0), (3, 0), (4, 0))
    program = make("unified", {"kind": "causal", "batch": 5}, [rows, removal])
    derived = derive(program, "pieces", (1, 3))
    assert show(derived)[1:] == [{**removal, "begin": 3}, {**removal, "end": 3}]


def test_a_sequence_that_goes_on_is_a_layer() -> None:
    ops = [forward((0, 0), (0, 1)), forward((1, 0))]
    derived = derive(make("unified", TWO, ops), "mask", 1)
    assert (derived.program.contract, show(derived)) == ("layer", [update(2)])
    assert derived.tags == {0: 0, 1: 2}


def list_promises(derived: Derived) -> list[tuple[int, Any]]:
    """(operation of the derived program, what it must answer)"""
    return [(claim.other, claim.answer) for claim in derived.claims if claim.is_promise]


def see(*positions: int) -> dict[str, Any]:
    """One row that sees new tokens at these positions."""
    return {"visible": [[(at, DETOUR) for at in positions]]}


def remove(begin: int, end: int | None) -> dict[str, Any]:
    return {"op": "remove", "sequence": 0, "begin": begin, "end": end}


def test_a_full_cache_takes_nothing_more_and_keeps_nothing_of_it() -> None:
    program = make("unified", {"kind": "causal", "capacity": 2}, [forward((0, 0))])
    derived = derive(program, "room", (0, "full"))
    passes = [forward((0, 0), (1, 0)), forward((2, 0)), remove(1, 2), forward((1, 0))]
    assert show(derived) == passes
    full = {"error": "cache-full"}
    assert list_promises(derived) == [(0, {}), (1, full), (2, {}), (3, see(0, 1))]


def test_a_copy_takes_no_room() -> None:
    program = make("unified", {**TWO, "capacity": 2}, [forward((0, 0))])
    derived = derive(program, "room", (0, "copied"))
    copy = {"op": "copy_prefix", "source": 0, "target": 1, "length": 3}
    ops = [forward((0, 0), (1, 0), (2, 0)), copy, forward((3, 0))]
    assert show(derived) == ops
    assert list_promises(derived) == [(2, {})]


def test_a_gap_closes() -> None:
    config = {"kind": "causal", "batch": 8, "capacity": 8}
    program = make("unified", config, [forward((0, 0), (1, 0), (2, 0)), remove(1, 2)])
    derived = derive(program, "pieces", (1, "gap"))
    rows = forward(*((at, 0) for at in range(6)))
    assert show(derived) == [rows, remove(1, 3), forward((4, 0))]
    assert list_promises(derived) == [(1, {}), (2, see(0, 1, 2, 3, 4))]


def test_what_was_forgotten_is_not_seen_again() -> None:
    """Of the tokens 0 to 6 those from 3 on are kept: position 4 would miss the one at 2.
    That nobody may go on there is no claim, only what would have to be seen."""
    config = {"kind": "swa-memory", "window": 2, "memory": 3, "batch": 8, "capacity": 8}
    program = make("unified", config, [forward((0, 0)), forward((1, 0)), forward((2, 0))])
    derived = derive(program, "resume", (2, "forgotten"))
    asked = {"op": "can_resume", "sequence": 0, "position": 4}
    ends = [asked, remove(4, None), forward((4, 0))]
    assert show(derived) == [
        forward(*((at, 0) for at in range(6))),
        forward((6, 0)),
        *ends,
    ]
    assert derived.claims[0].is_condition
    assert list_promises(derived) == [(2, {"result": True}), (3, {}), (4, see(2, 3, 4))]


def test_a_state_goes_on_from_its_first_checkpoint() -> None:
    config = {"kind": "recurrent", "interval": 2}
    program = make("unified", config, [forward((0, 0)), forward((1, 0))])
    derived = derive(program, "resume", (1, "checkpoint"))
    asked = {"op": "can_resume", "sequence": 0, "position": 1}
    again = [asked, remove(1, None), forward((1, 0))]
    assert show(derived) == [forward((0, 0)), forward((1, 0)), *again]
    read = {**see(0, 1), "states": [[DETOUR, DETOUR]]}
    assert list_promises(derived) == [(2, {"result": True}), (3, {}), (4, read)]


@pytest.mark.parametrize(
    ("way", "begin", "cached"), [("before", 3, True), ("last", 4, False)]
)
def test_the_last_of_two_images_is_stored(way: str, begin: int, cached: bool) -> None:
    both = forward((0, 0), (1, 0), multimodal=[0, 1])
    derived = derive(make("unified", {"kind": "encoder"}, [both]), "image", (0, way))
    rows = forward((3, 0), (4, 0), multimodal=[0, 1])
    ops = [rows, {"op": "put"}, remove(begin, begin + 1), forward((5, 0))]
    assert show(derived) == ops
    assert list_promises(derived) == [(3, {"cached": cached})]


def begin(*tokens: int, **more: Any) -> dict[str, Any]:
    return {"op": "begin", "tokens": list(tokens), **more}


def feed(count: int, **more: Any) -> dict[str, Any]:
    return {"op": "feed", "count": count, **more}


CLOSE = {"op": "close"}


def test_what_is_reused_is_what_is_computed() -> None:
    ops = [begin(1, 2), feed(2), CLOSE, begin(1, 2, 3), feed(1)]
    program = make("prefix", {"kind": "trie", "layers": ["kv"]}, ops)
    assert show(derive(program, "recompute", 3)) == [begin(1, 2), feed(2)]
    assert show(derive(program, "recompute", 4)) == [begin(1, 2, 3), feed(3)]
    best = derive(program, "best", 3)
    assert (best.program.kind, show(best)) == ("session", ops[:4])


def test_slots_are_calls_of_the_cache_below() -> None:
    config = {"kind": "slots", "layers": ["causal"], "context": 4, "keep": 1}
    ops = [begin(1, 2, 3, 4), feed(3), feed(1, generate=[5]), feed(1), CLOSE]
    derived = derive(make("prefix", config, ops), "pool", 0)
    assert show(derived) == [
        {"op": "remove", "sequence": 0, "begin": 0, "end": None},
        forward((0, 0), (1, 0), (2, 0)),
        forward((3, 0)),
        {"op": "remove", "sequence": 0, "begin": 1, "end": 2},
        forward((3, 0)),
        {"op": "remove", "sequence": 0, "begin": 4, "end": None},
    ]


def test_a_fork_is_a_copy() -> None:
    layers = {"kind": "slots", "layers": ["causal"], "slots": 2, "several_users": True}
    ops = [begin(1, 2, 3), feed(3), CLOSE, begin(1, 2, 4), feed(1), CLOSE]
    derived = derive(make("prefix", layers, ops), "pool", 0)
    fork = {"op": "copy_prefix", "source": 0, "target": 1, "length": 2}
    assert fork in show(derived)


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
        "row 0 sees tokens 0, 1, 2, 3, but should see tokens 0, 1, 3 (2 is too much); so"
        " it is in fresh caches that get the tokens that are left (update with 2 tokens;"
        " update with 1 token)"
    )


def test_derived_programs_are_the_same_each_time_and_take_turns() -> None:
    programs = [derive_one(TRIMMED, number) for number in range(7)]
    assert programs == [derive_one(TRIMMED, number) for number in range(7)]
    assert len({program.digest() for program in programs if program}) > 4
