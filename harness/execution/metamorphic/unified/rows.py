"""Relations order and cut of unified caches: in which order the rows of a pass stand, and
in how many passes they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.execution.metamorphic.answers import View
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import has_kind, slides
from lockstep.harness.execution.metamorphic.unified.passes import (
    choose_rows,
    is_going_on,
    is_pass,
    is_plain,
    pick,
)


class Order(Relation):
    """The rows of a pass may stand in any order: each sees the same. Where a state reads
    them, those of one sequence keep their order."""

    name = "order"

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[int]:
        return [
            step.number
            for step in history.steps
            if is_pass(step)
            and not step.op["multimodal"]
            and reorder(step, history) != [*range(len(step.op["positions"]))]
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        rows = reorder(history.get_step(choice), history)
        back = [rows.index(row) for row in range(len(rows))]
        changed: Any = None
        for step in history.steps:
            if step.number == choice:
                changed = choose_rows(step.op, rows)
                tags = [step.tags[row] for row in rows]
                other = builder.add(changed, tags)
                builder.claim(step, other, view=see(changed, back))
                continue
            if step.name == "forward" and step.answer.get("error") != "usage":
                changed = None
            if step.name == "get" and changed:
                other = builder.add(step.op)
                builder.claim(step, other, view=see(changed, back))
            else:
                builder.take(step)
        return builder.build("with the rows of one pass in another order")


def see(op: Any, rows: Sequence[int]) -> View:
    return lambda answer: pick(answer, op, rows)


def reorder(step: Step, history: History) -> list[int]:
    """The rows from the last to the first; sequence by sequence, if there are states."""
    owners = step.op["sequences"]
    rows = list(range(len(owners)))
    if not has_kind(history.program.config, "recurrent"):
        return rows[::-1]
    last_first = list(dict.fromkeys(reversed(owners)))
    return sorted(rows, key=lambda row: last_first.index(owners[row]))


class Cut(Relation):
    """In how many passes rows come changes nothing: a pass with the positions 0, 1, 2 of
    a sequence answers what one with 0 and one with 1, 2 answer together. But no row may
    see, in one pass, a row that would come only after it in two.

    Where a window slides, a token may go a pass earlier or later. Then only the rows that
    are cut are compared, not what comes after them, and only of sequences that went on
    from all that they ever held.
    """

    name = "cut"

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        choices: list[Any] = []
        before: Step | None = None
        for step in history.steps:
            if is_plain(step):
                ways = [way for way in ("halves", "owners") if split(step, way)]
                choices += [(step.number, way) for way in ways]
            if before and is_joint(before, step, history):
                choices.append((step.number, "join"))
            before = step
        return choices

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        config = history.program.config
        is_last = slides(config) or bool(config["interval"])
        step = history.get_step(number)
        if slides(config) and not is_going_on(history, step):
            return None
        builder = Builder(history)
        steps = [one for one in history.steps if not is_last or one.number <= number]
        at = [one.number for one in steps].index(number)
        for place, one in enumerate(steps):
            if one is step and way == "join":
                self.join(builder, steps[at - 1], step)
            elif one is step:
                self.split(builder, step, split(step, way))
            elif way != "join" or place != at - 1:
                if one.name in ("get", "put") and place > at:
                    continue  # they would show the second pass alone, or both
                builder.take(one)
        words = "with two passes joined" if way == "join" else "with one pass cut in two"
        return builder.build(words)

    def split(self, builder: Builder, step: Step, parts: Sequence[Sequence[int]]) -> None:
        last = parts[1]
        for rows in parts:
            other = builder.add(
                choose_rows(step.op, rows), [step.tags[row] for row in rows]
            )
            is_done = rows is last or len(set(step.op["sequences"])) > 1
            alone = not {step.op["sequences"][row] for row in rows} & {
                step.op["sequences"][row] for row in last
            }
            answer = pick(step.answer, step.op, rows, is_done and (rows is last or alone))
            builder.claim(step, other, answer, rows=rows)

    def join(self, builder: Builder, first: Step, second: Step) -> None:
        both = {
            name: [*first.op[name], *second.op[name]]
            for name in ("positions", "sequences")
        }
        op = {**first.op, **both}
        other = builder.add(op, [*first.tags, *second.tags])
        count = len(first.op["positions"])
        rows = range(count), range(count, len(op["positions"]))
        for step, own in zip((first, second), rows, strict=True):
            answer = pick(step.answer, step.op, range(len(own)), states=step is second)
            builder.claim(step, other, answer, view=see(op, own))


def split(step: Step, way: str) -> list[list[int]]:
    """The rows in two parts, in their order, or nothing: the former half of each
    sequence; or one sequence and the others."""
    owners, positions = step.op["sequences"], step.op["positions"]
    rows = list(range(len(owners)))
    if way == "owners":
        first = [row for row in rows if owners[row] == owners[0]]
    else:
        first = []
        for owner in set(owners):
            own = [row for row in rows if owners[row] == owner]
            first += own[: len(own) // 2]
        first.sort()
    second = [row for row in rows if row not in first]
    sees = any(
        owners[a] == owners[b] and positions[b] <= positions[a]
        for a in first
        for b in second
    )
    return [first, second] if first and second and not sees else []


def is_joint(first: Step, second: Step, history: History) -> bool:
    config = history.program.config
    if not is_plain(first) or not is_plain(second) or slides(config):
        return False
    if has_kind(config, "recurrent"):
        return False  # they want as many rows of each sequence
    one, two = first.op, second.op
    if len(one["positions"]) + len(two["positions"]) > config["batch"]:
        return False
    return not any(
        owner == other and at <= position
        for owner, position in zip(one["sequences"], one["positions"], strict=True)
        for other, at in zip(two["sequences"], two["positions"], strict=True)
    )
