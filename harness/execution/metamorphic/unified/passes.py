"""Passes of a unified cache: what they are, how to add one, and parts of their
answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.execution.metamorphic.derived import Builder
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.unified.book import UnifiedBook


def add_rows(builder: Builder, rows: Sequence[tuple[int, int, int]]) -> list[int]:
    """Passes of as many of (tag, position, sequence) as the batch allows; their
    numbers."""
    most, numbers = builder.config["batch"], []
    for begin in range(0, len(rows), most):
        some = rows[begin : begin + most]
        op = {
            "op": "forward",
            "positions": [position for _, position, _ in some],
            "sequences": [sequence for _, _, sequence in some],
        }
        numbers.append(builder.add(op, [tag for tag, _, _ in some]))
    return numbers


def add_new(builder: Builder, owner: int, positions: Sequence[int]) -> list[int]:
    """The same for new tokens of one sequence, which the first program does not have."""
    most, numbers = builder.config["batch"], []
    for begin in range(0, len(positions), most):
        some = list(positions[begin : begin + most])
        op = {"op": "forward", "positions": some, "sequences": [owner] * len(some)}
        numbers.append(builder.add(op))
    return numbers


def is_pass(step: Step) -> bool:
    """A pass that was not refused, and shows something."""
    return (
        step.name == "forward" and "error" not in step.answer and not step.op["reserve"]
    )


def opens(step: Step) -> bool:
    """Whether what comes after is about this pass, and about none before it."""
    return step.name == "forward" and step.answer.get("error") != "usage"


def is_plain(step: Step) -> bool:
    return is_pass(step) and not step.op["except"] and not step.op["multimodal"]


def is_going_on(history: History, step: Step) -> bool:
    """Every sequence of the batch goes on behind all that it ever held, upwards."""
    peaks = dict(UnifiedBook.before(history, step.number).peaks)
    for owner, position in zip(step.op["sequences"], step.op["positions"], strict=True):
        if position < peaks.get(owner, 0):
            return False
        peaks[owner] = position + 1
    return True


def pick(answer: Answer, op: Any, rows: Sequence[int], states: bool = True) -> Answer:
    """The answer to a pass with only these rows of it, in this order. op: the pass with
    all rows. states: also what their sequences have read."""
    if "caches" in answer:
        parts = [pick(part, op, rows, states) for part in answer["caches"]]
        return {**answer, "caches": parts}
    picked = dict(answer)
    if "visible" in answer:
        picked["visible"] = [answer["visible"][row] for row in rows]
    if "states" in answer:
        del picked["states"]
        if states:
            owners = list(dict.fromkeys(op["sequences"]))
            wanted = dict.fromkeys(op["sequences"][row] for row in rows)
            picked["states"] = [answer["states"][owners.index(one)] for one in wanted]
    return picked


def choose_rows(op: Any, rows: Sequence[int]) -> dict[str, Any]:
    """The pass with only these rows, in this order."""
    chosen = {
        name: [op[name][row] for row in rows] for name in ("positions", "sequences")
    }
    return {**op, **chosen, "except": [rows.index(row) for row in op["except"]]}
