"""A failure in words: what came of its steps."""

from __future__ import annotations

from functools import partial

import pytest

from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.words import describe_failure
from tests.harness.building import ALL_KINDS, declare_all, draw_some, make, trim, update

FORWARD: Op = {"op": "forward", "positions": [0, 1], "sequences": [0, 0]}
WIDE: Op = {"op": "forward", "positions": [0] * 16, "sequences": [0] * 16}
COPY: Op = {"op": "copy_prefix", "source": 0, "target": 1, "length": 2}
REMOVE: Op = {"op": "remove", "sequence": 1, "begin": 0, "end": 1}
RESUME: Op = {"op": "can_resume", "sequence": 1, "position": 1}
RESTORE: Op = {"op": "restore", "snapshot": None, "target": 1}


unify = partial(
    make, contract="unified", kind="causal", sequences=2, capacity=8, batch=16
)


def tell(program: Program, step: int | None = None) -> list[str]:
    _, *steps, _ = describe_failure(program, step, "contents", "differs")
    return steps


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (unify(FORWARD, COPY, REMOVE), "→ refused: shared"),
        (unify(WIDE, FORWARD), "cache-full"),
        (unify(RESUME, kind="swa-memory", window=2, memory=3), "→ false"),
        (make(update(2), trim(5)), "→ trimmed 2"),
        (make(update(2), RESTORE, dtype="float16"), ""),
        (make(update(2), {**RESTORE, "snapshot": "s0"}), "→ skipped: there is no"),
        (make(update(2), trim(1)), ""),
    ],
)
def test_what_came_of_a_step_is_told(program: Program, words: str) -> None:
    *_, last = tell(program)
    assert words in last
    assert bool(words) == ("→" in last)


def test_of_the_step_that_diverges_stands_what_should_have_come() -> None:
    first, _, last = tell(unify(FORWARD, COPY, REMOVE), 2)
    assert last.startswith("→ step 2: remove ")
    assert last.endswith(" (expected: refused: shared)")
    assert "expected" not in first


def test_nothing_is_told_behind_a_choice_of_the_backend() -> None:
    """Whether a step behind it is refused depends on the answer that a backend gives."""
    run: list[Op] = [
        {"op": "open", "request": "a", "tokens": [0, 1]},
        {"op": "schedule", "request": "a"},
        {"op": "run"},
        {"op": "schedule", "request": "a"},
    ]
    groups = [{"type": "full", "block": 1, "layers": 1}]
    steps = tell(make(*run, contract="paged", kind="paged-full", groups=groups))
    assert len(steps) == len(run)
    assert "→" not in steps[1]


@pytest.mark.parametrize(("contract", "kind"), ALL_KINDS)
def test_different_operations_have_different_texts(contract: str, kind: str) -> None:
    """A picture of a failure shows every field that matters."""
    told: dict[str, Op] = {}
    for program in draw_some(12, contract, kind, declare_all(contract, kind)):
        for op in program.ops:
            if op["op"] == "close" and contract == "layer":
                op = {**op, "cache": "a"}  # a snapshot is closed, whatever its cache
            text = program.rules.operations[op["op"]].describe(op)
            assert told.setdefault(text, op) == op
