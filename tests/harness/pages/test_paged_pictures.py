"""Pictures of paged caches: the tables, and who shares which block."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.execution.recording.recorder import record
from lockstep.harness.programs.program import walk
from lockstep.harness.workers.registry import load
from tests.harness.building import make

STEPS: tuple[dict[str, Any], ...] = (
    {"op": "open", "request": "a", "tokens": [1, 2, 3]},
    {"op": "schedule", "request": "a"},
    {"op": "run"},
    {"op": "open", "request": "b", "tokens": [1, 2, 9]},
    {"op": "schedule", "request": "b"},
    {"op": "run"},
)


def draw(*more: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    pytest.importorskip("torch")
    program = make(*STEPS, *more, contract="paged", **config)
    recorded = record(
        program, load("torch-cpu"), Bounds(), None, None, lambda _: None, lambda _: None
    )
    assert recorded["divergence"] is None
    drawn: list[dict[str, Any]] = recorded["steps"]
    return drawn


def list_facts(step: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        part["title"]: {fact["name"]: fact["got"] for fact in part["facts"]}
        for part in step["parts"]
    }


def test_a_step_shows_the_table_of_each_request() -> None:
    steps = draw(kind="paged-full")
    assert list_facts(steps[4]) == {
        "request b": {"table of group 0 (full)": "0 (also a), 2"},
        "request a": {"table of group 0 (full)": "0 (also b), 1"},
    }
    assert list_facts(steps[5]) == {
        "request b, group 0 (full)": {
            "first": "0",
            "slots": "0, 1, 5",
            "table": "0 (also a), 2",
        }
    }


def test_a_request_that_has_ended_since_its_step_holds_nothing() -> None:
    free = {"op": "free", "request": "a"}
    *_, last = walk(make(*STEPS[:3], free, free, contract="paged", kind="paged-full"))
    assert last.model.list_held(STEPS[2]) == []


def test_a_block_that_a_transfer_needs_says_so() -> None:
    """The block of the device, not that of other memory, which has another number."""
    opened = {**STEPS[0], "request": "c", "tokens": [5, 6, 7]}
    more = opened, {**STEPS[1], "request": "c"}, STEPS[2]
    offload = {"op": "offload", "request": "c", "transfer": "t"}
    steps = draw(*more, offload, kind="paged-full", host=4)
    assert list_facts(steps[-1])["request c"] == {
        "table of group 0 (full)": "3 (also transfer t), 4"
    }


def test_a_step_of_a_hybrid_has_a_part_for_each_group() -> None:
    groups = [
        {"type": "sliding", "block": 1, "width": 2, "layers": 1},
        {"type": "state", "block": 2, "layers": 1},
    ]
    steps = draw(kind="paged-hybrid", groups=groups)
    names = "request a, group 0 (sliding)", "request a, group 1 (state)"
    facts = list_facts(steps[2])
    assert tuple(facts) == names
    assert facts[names[0]]["table"] == "–, –, 2"
    assert facts[names[1]] == {"state": "nothing", "table": "–, 4"}
