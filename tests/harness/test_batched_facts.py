"""The facts about a batch that a condition of the ledger may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.program import parse_program, walk

OPEN: Op = {"op": "open", "rows": 3}
UPDATE: Op = {"op": "update", "length": 2}
EMPTY: Op = {"op": "trim", "count": 2}
FREE: Op = {"op": "free"}
CLONE: Op = {"op": "clone", "into": "b"}
NAMES = ("width", "reached", "ever", "kept", "resized", "moved")


def get_facts(*ops: Op, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The facts before the last operation."""
    document = {
        "format": "lockstep/1",
        "contract": "batched",
        "config": dict(config or {"kind": "batch-kv"}),
        "ops": list(ops),
    }
    facts: Mapping[str, int | None] = {}
    for step in walk(parse_program(document, "here")):
        assert step.skipped is None
        facts = step.model.get_facts(step.op)
    assert facts.keys() == CONTRACTS["batched"].facts.keys()
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
    found = get_facts(*ops)
    assert tuple(found[name] for name in NAMES) == facts


def test_an_empty_batch_that_is_extended_has_the_width_of_the_other() -> None:
    other: list[Op] = [{**OPEN, "cache": "b"}, {**UPDATE, "cache": "b"}]
    facts = get_facts(OPEN, *other, {"op": "extend", "other": "b"}, FREE)
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
    one: Op = {"op": "update", "length": 1}
    ops = [OPEN, *[one] * 4, EMPTY]
    found = get_facts(*ops, config={"kind": "batch-list", "caches": parts})
    assert (found["window"], found["turned"]) == (window, turned)
    single = get_facts(
        {**one, "cache": "x"}, config={"kind": "batch-list", "caches": parts}
    )
    assert (single["window"], single["turned"]) == (window, 0)
