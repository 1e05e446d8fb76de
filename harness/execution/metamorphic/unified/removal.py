"""Relation pieces of unified caches: in how many pieces something is removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    has_kind,
    is_pure,
    list_seen,
)
from lockstep.harness.execution.metamorphic.unified.passes import add_new


class Pieces(Relation):
    """What is removed may go in two pieces, the later one first: positions 1 to 3 as 3,
    and then 1 and 2. And in a plain program: of the tokens 0 to 5 of a sequence some are
    removed from 1 on; then the next token sees one at each position before its own.

    A choice is (step, where the second piece begins), or (step, "gap").
    """

    name = "pieces"

    def is_about(self, kind: str) -> bool:
        return kind != "recurrent"

    def list_choices(self, history: History) -> Sequence[Any]:
        if has_kind(history.program.config, "recurrent"):
            return []
        choices: list[Any] = []
        for step in history.steps:
            if step.name == "remove" and "error" not in step.answer:
                begin, end = step.op["begin"], step.op["end"]
                stops = (begin + 1, begin + 2) if end is None else (begin + 1, end - 1)
                last = stops[1] if end is None else end - 1
                middles = [at for at in stops if begin < at <= last]
                choices += [(step.number, at) for at in dict.fromkeys(middles)]
                choices += [(step.number, "gap")] if may_gap(history) else []
        return choices

    def derive(self, history: History, choice: tuple[int, Any]) -> Derived | None:
        number, middle = choice
        if middle == "gap":
            return close_gap(history, history.get_step(number))
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                builder.add({**step.op, "begin": middle})
                builder.take(step, end=middle)
            else:
                builder.take(step)
        return builder.build("with one removal in two pieces")


LENGTH = 6
"""Tokens of the plain program."""


def may_gap(history: History) -> bool:
    config = history.program.config
    is_single = config["kind"] != "wrapper" and is_pure(config)
    return is_single and config["shift"] and config["capacity"] >= LENGTH


def close_gap(history: History, step: Step) -> Derived | None:
    """One token is removed, or two or three: that depends on the step."""
    builder, count = Builder(history), 1 + step.number % 3
    add_new(builder, 0, range(LENGTH))
    gone = {"sequence": 0, "begin": 1, "end": 1 + count}
    builder.promise(step, builder.add({"op": "remove", **gone}), {})
    (other,) = add_new(builder, 0, [LENGTH - count])
    seen = list_seen(builder.config, LENGTH - count)
    builder.promise(step, other, {"visible": [seen]})
    return builder.build("of a sequence that closes a gap")
