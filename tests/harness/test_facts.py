"""The facts about a batch and about a paged cache that a condition of the ledger may
name."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.program import walk
from tests.harness.building import make, update
from tests.harness.paging import RUN, ask, fork, open_request

BATCH = {"contract": "batched", "kind": "batch-kv"}
OPEN: Op = {"op": "open", "rows": 3}
UPDATE: Op = {"op": "update", "length": 2}
EMPTY: Op = {"op": "trim", "count": 2}
FREE: Op = {"op": "free"}
CLONE: Op = {"op": "clone", "into": "b"}
EXTEND: Op = {"op": "extend", "other": "b"}
NAMES = ("width", "reached", "ever", "kept", "resized", "moved")


def get_facts(*ops: Op, contract: str, **config: Any) -> dict[str, Any]:
    """The facts before the last operation."""
    facts: Any = {}
    for step in walk(make(*ops, contract=contract, **config)):
        assert step.skipped is None
        facts = step.model.get_facts(step.op)
    assert facts.keys() == CONTRACTS[contract].facts.keys()
    return dict(facts)


def keep(*rows: int, name: str = "filter", cache: str = "a") -> Op:
    return {"op": name, "rows": list(rows), "cache": cache}


@pytest.mark.parametrize(
    ("ops", "facts"),
    [
        ([OPEN, keep(0, 1)], (0, 0, 0, 2, 1, 1)),
        ([OPEN, UPDATE, keep(0, 1, 2)], (2, 2, 2, 3, 0, 0)),
        ([OPEN, UPDATE, keep(2, 1, 0)], (2, 2, 2, 3, 0, 1)),
        ([OPEN, UPDATE, keep(1, 1, 1, 0, name="select")], (2, 2, 2, 4, 1, 1)),
        ([OPEN, UPDATE, EMPTY, {"op": "repeat", "times": 2}], (0, 2, 2, 6, 1, 1)),
        ([OPEN, UPDATE, {"op": "repeat", "times": 1}], (2, 2, 2, 3, 0, 0)),
        ([OPEN, UPDATE, keep(1, 1, 1, name="select"), keep(2, 1, 0)], (2, 2, 2, 3, 0, 0)),
        ([OPEN, UPDATE, FREE, keep(0)], (0, 0, 2, 1, 1, 1)),
        ([OPEN, UPDATE, FREE, CLONE, keep(0, cache="b")], (0, 0, 2, 1, 1, 1)),
        ([OPEN, UPDATE, OPEN, FREE], (0, 0, 0, 3, 0, 0)),
        ([UPDATE, FREE], (2, 2, 2, 0, 0, 0)),
    ],
)
def test_facts_of_a_batch(ops: list[Op], facts: tuple[int, ...]) -> None:
    found = get_facts(*ops, **BATCH)
    assert tuple(found[name] for name in NAMES) == facts


def test_an_empty_batch_that_is_extended_has_the_width_of_the_other() -> None:
    other: list[Op] = [{**OPEN, "cache": "b"}, {**UPDATE, "cache": "b"}]
    facts = get_facts(OPEN, *other, EXTEND, FREE, **BATCH)
    assert (facts["width"], facts["reached"], facts["ever"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("caches", "window", "turned"),
    [
        (["batch-kv", "batch-kv"], None, 0),
        (["batch-kv", 2, 5], 2, 2),
        (["batch-state", 3], 3, 1),
    ],
)
def test_a_list_turns_as_its_first_ring(
    caches: list[str | int], window: int | None, turned: int
) -> None:
    parts: list[dict[str, Any]] = [
        {"kind": each}
        if isinstance(each, str)
        else {"kind": "batch-rotating", "window": each}
        for each in caches
    ]
    config = {**BATCH, "kind": "batch-list", "caches": parts}
    ops = [OPEN, *[update(1)] * 4, EMPTY]
    found = get_facts(*ops, **config)
    assert (found["window"], found["turned"]) == (window, turned)
    single = get_facts(update(1, cache="x"), **config)
    assert (single["window"], single["turned"]) == (window, 0)


# --- columns of a batch -----------------------------------------------------------------

ROW: Op = {"op": "open", "rows": 2}
LOAD = [{"op": "save", "into": "s"}, {"op": "load", "from": "s"}]


ONE = update(1)


def get_ring_facts(*ops: Op, kind: str = "batch-rotating") -> dict[str, int]:
    """Under a window of 3."""
    window = 3 if kind == "batch-rotating" else None
    return get_facts(ROW, *ops, contract="batched", kind=kind, window=window)


LAST = {"op": "trim", "count": 0}


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        ([update(2)], {"written": 0, "width": 0, "padding": 0, "coming": 0}),
        ([update(3, left=[2, 0])], {"padding": 2}),
        ([update(3, left=[2, 0]), LAST], {"written": 3, "shortest": 1, "longest": 3}),
        ([update(2), {"op": "trim", "count": 2}, LAST], {"written": 2, "width": 0}),
        ([{"op": "pad_right", "lengths": [1, 4]}, update(3), ONE],
         {"coming": 1, "ending": 1, "ended": 1, "finalized": 0}),
        ([{"op": "pad_right", "lengths": [2, 4]}, ONE, ONE],
         {"coming": 3, "ending": 1, "ended": 0}),
        ([{"op": "pad_right", "lengths": [1, 2]}, update(2), {"op": "finalize"}, LAST],
         {"coming": 0, "ending": 0, "ended": 0, "finalized": 1}),
        ([update(3), ONE, {"op": "pad_right", "lengths": [1, 2]}, ONE, ONE],
         {"turned": 0}),
        ([ONE, ONE, ONE, LAST], {"turned": 0}),
        ([update(3), ONE, LAST], {"turned": 1}),
        ([update(5), ONE, ONE, LAST], {"turned": 2}),
        ([update(5), ONE, update(2), LAST], {"turned": 0}),
        ([update(3), ONE, {"op": "filter", "rows": [1]}, LAST], {"turned": 1}),
        ([update(3), ONE, *LOAD, LAST], {"turned": 1, "written": 4}),
        ([update(3), ONE, {"op": "clone", "into": "b"}, {**LAST, "cache": "b"}],
         {"turned": 1, "written": 4}),
        ([update(2), LAST], {"loaded": 0}),
        ([update(2), *LOAD, ONE, {"op": "filter", "rows": [1]}, LAST], {"loaded": 1}),
        ([*LOAD, {"op": "clone", "into": "b"}, {**LAST, "cache": "b"}], {"loaded": 1}),
        ([*LOAD, {"op": "pad_right", "lengths": [1, 2]}, ONE], {"loaded": 0}),
        ([update(3), ONE, {"op": "free"}, ONE], {"turned": 0, "written": 0}),
    ],
)  # fmt: skip
def test_columns_are_counted(ops: list[dict[str, Any]], wanted: dict[str, int]) -> None:
    facts = get_ring_facts(*ops)
    assert {name: facts[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("one", "other", "turned"), [(1, 1, 1), (1, 4, 1), (2, 1, 0), (0, 1, 0), (1, 0, 0)]
)
def test_rings_that_stand_alike_stay_so_when_they_are_joined(
    one: int, other: int, turned: int
) -> None:
    """Others are put in order first."""
    second = [
        {**ROW, "cache": "b"},
        update(5, cache="b"),
        *[update(1, cache="b")] * other,
    ]
    facts = get_ring_facts(update(3), *[ONE] * one, *second, EXTEND, LAST)
    assert facts["turned"] == turned
    assert get_ring_facts(update(3), *second, EXTEND)["joined"] == 5 + other
    assert facts["written"] == max(3 + one, 5 + other)


def test_a_ring_that_counts_columns_refuses_as_soon_as_one_is_gone() -> None:
    """Elsewhere the cache has the choice."""
    ops = [ROW, update(3, left=[2, 0]), {"op": "filter", "rows": [0]}, ONE, LAST]
    for ring, wanted in (("any", {"one_of"}), ("columns", {"trimmed", "offsets"})):
        config = {"kind": "batch-rotating", "window": 3, "ring": ring}
        for count in (1, 2):
            last = {"op": "trim", "count": count}
            program = make(*ops[:-1], last, contract="batched", **config)
            *_, answer = [dict(step.run_reference()) for step in walk(program)]
            assert answer.keys() == wanted
            assert answer.get("trimmed", 0) == 0


@pytest.mark.parametrize(("kind", "written"), [("batch-state", 1), ("batch-kv", 0)])
def test_a_state_that_was_taken_from_a_batch_is_written(kind: str, written: int) -> None:
    """Also if it has read no token; K and V of no token are none."""
    clone = {"op": "clone", "cache": "y", "into": "z"}
    take = [
        {"op": "filter", "rows": [1]},
        {"op": "extract", "row": 0, "into": "y"},
        clone,
    ]
    last = {"op": "extract", "row": 0, "into": "z", "cache": "c"}
    stack = {"op": "stack", "cache": "c"}
    full = [update(1, cache="x"), {"op": "stack", "caches": ["x", "y"]}, *take]
    facts = get_ring_facts(*full, {**stack, "caches": ["z"]}, last, kind=kind)
    assert facts["written"] == written
    facts = get_ring_facts({**stack, "caches": ["z"]}, last, kind=kind)
    assert facts["written"] == 0


# --- tokens that a window of a paged cache has left -------------------------------------

FULL = {"type": "full", "block": 1, "layers": 1}
WINDOW = {"type": "sliding", "block": 1, "width": 2, "layers": 1}


def get_paged_facts(*ops: Op, group: Op = WINDOW) -> dict[str, Any]:
    kind = f"paged-{group['type']}"
    return get_facts(*ops, contract="paged", kind=kind, groups=[group])


REQUEST = open_request("a", 1, 1)
STEP = ask("schedule", "a"), RUN
DECODE = *STEP, ask("accept", "a", sampled=1)
END = ask("free", "a")
SLID = REQUEST, *DECODE, *DECODE, *DECODE, *STEP  # 2 tokens of the prompt, 3 others


@pytest.mark.parametrize(
    ("ops", "slid"),
    [
        ([REQUEST, END], 0),
        ([open_request("a", *[1] * 9), *DECODE, END], 0),  # a prompt is not sampled
        ([REQUEST, *DECODE, *DECODE, *STEP, END], 0),
        ([*SLID, END], 1),
        ([*SLID, ask("accept", "a", sampled=1), END], 1),
        ([*SLID, ask("accept", "a", sampled=1), *STEP, END], 2),
        ([*SLID, ask("preempt", "a"), *DECODE, *STEP, END], 0),  # now all is the prompt
        ([*SLID, END, REQUEST, *DECODE, *DECODE, *STEP, END], 0),
        ([*SLID, ask("rewind", "a", to=4, tokens=[2, 2]), *DECODE, *DECODE, END], 0),
        (
            [
                *(open_request("a", 1), *DECODE, END),
                *(open_request("b", 2, 2, 2), ask("schedule", "b"), RUN),
                fork("b", "a", 1),
                *(*DECODE, *STEP, END),
            ],
            0,
        ),
    ],
)
def test_sampled_tokens_that_a_window_has_left(ops: list[Op], slid: int) -> None:
    assert get_paged_facts(*ops)["slid"] == slid


def test_without_a_window_nothing_is_left() -> None:
    assert get_paged_facts(*SLID, END, group=FULL)["slid"] is None
