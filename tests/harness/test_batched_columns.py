"""The numbers of a batch that conditions of the ledger are about."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.programs.program import parse_program, walk

ROW: dict[str, Any] = {"rows": 2, "op": "open"}
EXTEND = {"op": "extend", "other": "b"}
LOAD = [{"op": "save", "into": "s"}, {"op": "load", "from": "s"}]


def up(length: int, **fields: Any) -> dict[str, Any]:
    return {"op": "update", "length": length, **fields}


def get_facts(*ops: dict[str, Any], kind: str = "batch-rotating") -> dict[str, int]:
    """The facts that the last operation runs in, under a window of 3."""
    document = {
        "format": "lockstep/1",
        "contract": "batched",
        "config": {"kind": kind, "window": 3 if kind == "batch-rotating" else None},
        "ops": [ROW, *ops],
    }
    for step in walk(parse_program(document, "here"), rows=False):
        assert step.skipped is None
        if step.number == len(ops):
            return dict(step.model.get_facts(step.op))
    raise AssertionError("no step")


LAST = {"op": "trim", "count": 0}


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        ([up(2)], {"written": 0, "width": 0, "padding": 0, "coming": 0}),
        ([up(3, left=[2, 0])], {"padding": 2}),
        ([up(3, left=[2, 0]), LAST], {"written": 3, "shortest": 1, "longest": 3}),
        ([up(2), {"op": "trim", "count": 2}, LAST], {"written": 2, "width": 0}),
        ([{"op": "pad_right", "lengths": [1, 4]}, up(3), up(1)],
         {"coming": 1, "ending": 1, "ended": 1, "finalized": 0}),
        ([{"op": "pad_right", "lengths": [2, 4]}, up(1), up(1)],
         {"coming": 3, "ending": 1, "ended": 0}),
        ([{"op": "pad_right", "lengths": [1, 2]}, up(2), {"op": "finalize"}, LAST],
         {"coming": 0, "ending": 0, "ended": 0, "finalized": 1}),
        ([up(3), up(1), {"op": "pad_right", "lengths": [1, 2]}, up(1), up(1)],
         {"turned": 0}),
        ([up(1), up(1), up(1), LAST], {"turned": 0}),
        ([up(3), up(1), LAST], {"turned": 1}),
        ([up(5), up(1), up(1), LAST], {"turned": 2}),
        ([up(5), up(1), up(2), LAST], {"turned": 0}),
        ([up(3), up(1), {"op": "filter", "rows": [1]}, LAST], {"turned": 1}),
        ([up(3), up(1), *LOAD, LAST], {"turned": 1, "written": 4}),
        ([up(3), up(1), {"op": "clone", "into": "b"}, {**LAST, "cache": "b"}],
         {"turned": 1, "written": 4}),
        ([up(2), LAST], {"loaded": 0}),
        ([up(2), *LOAD, up(1), {"op": "filter", "rows": [1]}, LAST], {"loaded": 1}),
        ([*LOAD, {"op": "clone", "into": "b"}, {**LAST, "cache": "b"}], {"loaded": 1}),
        ([*LOAD, {"op": "pad_right", "lengths": [1, 2]}, up(1)], {"loaded": 0}),
        ([up(3), up(1), {"op": "free"}, up(1)], {"turned": 0, "written": 0}),
    ],
)  # fmt: skip
def test_columns_are_counted(ops: list[dict[str, Any]], wanted: dict[str, int]) -> None:
    facts = get_facts(*ops)
    assert {name: facts[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("one", "other", "turned"), [(1, 1, 1), (1, 4, 1), (2, 1, 0), (0, 1, 0), (1, 0, 0)]
)
def test_rings_that_stand_alike_stay_so_when_they_are_joined(
    one: int, other: int, turned: int
) -> None:
    """Others are put in order first."""
    second = [{**ROW, "cache": "b"}, up(5, cache="b"), *[up(1, cache="b")] * other]
    facts = get_facts(up(3), *[up(1)] * one, *second, EXTEND, LAST)
    assert facts["turned"] == turned
    assert get_facts(up(3), *second, EXTEND)["joined"] == 5 + other
    assert facts["written"] == max(3 + one, 5 + other)


def test_a_ring_that_counts_columns_refuses_as_soon_as_one_is_gone() -> None:
    """Elsewhere the cache has the choice."""
    ops = [ROW, up(3, left=[2, 0]), {"op": "filter", "rows": [0]}, up(1), LAST]
    for ring, wanted in (("any", {"one_of"}), ("columns", {"trimmed", "offsets"})):
        config = {"kind": "batch-rotating", "window": 3, "ring": ring}
        for count in (1, 2):
            last = {"op": "trim", "count": count}
            document = {"format": "lockstep/1", "contract": "batched", "config": config}
            program = parse_program({**document, "ops": [*ops[:-1], last]}, "here")
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
    full = [up(1, cache="x"), {"op": "stack", "caches": ["x", "y"]}, *take]
    facts = get_facts(*full, {**stack, "caches": ["z"]}, last, kind=kind)
    assert facts["written"] == written
    facts = get_facts({**stack, "caches": ["z"]}, last, kind=kind)
    assert facts["written"] == 0
