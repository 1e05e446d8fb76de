"""Relations of unified caches about the rows of a pass: in which order they stand, and in
how many passes they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.contracts.base import Answer
from harness.relations.derived import Builder, Derived, History, Step, View
from harness.relations.relation import Relation
from harness.relations.unified_book import (
    find_step,
    has_kind,
    is_pass,
    read_until,
    slides,
)


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


class Order(Relation):
    """The rows of a batch may stand in any order; those of one sequence keep theirs where
    a state reads them."""

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
        rows = reorder(find_step(history, choice), history)
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
    """Rows that do not see each other's future may come in one pass or in two. Where a
    window slides, what has gone in between may differ: then only the rows themselves are
    compared, and only of sequences that went on from all that they ever held."""

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
        step = find_step(history, number)
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


def is_plain(step: Step) -> bool:
    return is_pass(step) and not step.op["except"] and not step.op["multimodal"]


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


def is_going_on(history: History, step: Step) -> bool:
    """Every sequence of the batch goes on behind all that it ever held, upwards."""
    peaks = dict(read_until(history, step.number).peaks)
    for owner, position in zip(step.op["sequences"], step.op["positions"], strict=True):
        if position < peaks.get(owner, 0):
            return False
        peaks[owner] = position + 1
    return True
