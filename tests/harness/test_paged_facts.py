"""The facts about a paged cache that a condition of the ledger may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.programs.program import walk
from tests.harness.building import make

FULL = {"type": "full", "block": 1, "layers": 1}
WINDOW = {"type": "sliding", "block": 1, "width": 2, "layers": 1}
Op = dict[str, Any]


def ask(op: str, request: str = "a", **fields: Any) -> Op:
    return {"op": op, "request": request, **fields}


OPEN = ask("open", tokens=[1, 1])
STEP = ask("schedule"), {"op": "run"}
DECODE = *STEP, ask("accept", sampled=1)
FREE = ask("free")
SLID = OPEN, *DECODE, *DECODE, *DECODE, *STEP  # 2 tokens of the prompt, 3 others


def get_facts(*ops: Op, group: Op = WINDOW) -> Mapping[str, int | None]:
    """The facts before the last operation."""
    kind = f"paged-{group['type']}"
    facts: Mapping[str, int | None] = {}
    for step in walk(make(*ops, contract="paged", kind=kind, groups=[group])):
        assert step.skipped is None
        facts = step.model.get_facts(step.op)
    assert facts.keys() == CONTRACTS["paged"].facts.keys()
    return facts


@pytest.mark.parametrize(
    ("ops", "slid"),
    [
        ([OPEN, FREE], 0),
        ([ask("open", tokens=[1] * 9), *DECODE, FREE], 0),  # a prompt is not sampled
        ([OPEN, *DECODE, *DECODE, *STEP, FREE], 0),
        ([*SLID, FREE], 1),
        ([*SLID, ask("accept", sampled=1), FREE], 1),
        ([*SLID, ask("accept", sampled=1), *STEP, FREE], 2),
        ([*SLID, ask("preempt"), *DECODE, *STEP, FREE], 0),  # now all is the prompt
        ([*SLID, FREE, OPEN, *DECODE, *DECODE, *STEP, FREE], 0),
        ([*SLID, ask("rewind", to=4, tokens=[2, 2]), *DECODE, *DECODE, FREE], 0),
        (
            [
                *(ask("open", tokens=[1]), *DECODE, FREE),
                *(ask("open", "b", tokens=[2] * 3), ask("schedule", "b"), {"op": "run"}),
                {"op": "fork", "source": "b", "target": "a", "tokens": [1]},
                *(*DECODE, *STEP, FREE),
            ],
            0,
        ),
    ],
)
def test_sampled_tokens_that_a_window_has_left(ops: list[Op], slid: int) -> None:
    assert get_facts(*ops)["slid"] == slid


def test_without_a_window_nothing_is_left() -> None:
    assert get_facts(*SLID, FREE, group=FULL)["slid"] is None
