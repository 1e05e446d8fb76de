"""Relations pool, rename and cut of slots: a slot is a sequence of one cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.prefix.config import get_unified_config
from lockstep.harness.contracts.types import Answer
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.prefix.book import (
    SlotBook,
    count_same,
    get_user,
)
from lockstep.harness.execution.metamorphic.prefix.conversations import (
    SlotRelation,
    is_pure,
    rename_answered,
    rename_told,
)


class Pool(SlotRelation):
    """Slots are calls of one cache with many sequences, one sequence for each slot. The
    same calls are made by hand, and the rows of a pass must see the same.

    A request in slot 1 that keeps 3 tokens is a removal from position 3 on of sequence 1.
    One that gets what another slot has is a copy of a prefix. One that is too long loses
    its middle: the removal of a range.
    """

    name = "pool"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = history.program.config
        changes = get_unified_config(config)
        builder = Builder(history, contract="unified", **changes)
        for step, book in SlotBook.along(history):
            user = get_user(step)
            if step.name == "begin" and "slot" in step.answer:
                self.begin(builder, step, book, config["several_users"])
            elif step.name in ("feed", "break") and "positions" in step.answer:
                number = book.users[user]
                self.compute(builder, step, number, len(book.slots[number]), config)
            elif step.name in ("close", "cancel") and user in book.users:
                self.cut(builder, book.users[user], len(step.answer["tokens"]))
        return builder.build("of the cache below, asked the same by hand")

    def begin(
        self, builder: Builder, step: Step, book: SlotBook, several_users: bool
    ) -> None:
        """Of several users one gets a copy of what the best slot has, if that is more
        than its own slot has."""
        number, tokens = step.answer["slot"], step.op["tokens"]
        kept = len(step.answer["tokens"])
        common = {one: count_same(held, tokens) for one, held in book.slots.items()}
        best = max(common, key=lambda one: (common[one], -one), default=number)
        longest = common.get(best, 0)
        if several_users and kept and common.get(number, 0) < longest:
            fork = {"source": best, "target": number, "length": longest}
            builder.add({"op": "copy_prefix", **fork})
        self.cut(builder, number, kept)

    def cut(
        self, builder: Builder, number: int, begin: int, end: int | None = None
    ) -> None:
        builder.add({"op": "remove", "sequence": number, "begin": begin, "end": end})

    def compute(
        self, builder: Builder, step: Step, number: int, held: int, config: Any
    ) -> None:
        positions = step.answer["positions"]
        if positions[0] == 0 and held:
            self.cut(builder, number, 0)
        elif positions[0] < held:
            gone = held - positions[0]
            self.cut(builder, number, config["keep"], config["keep"] + gone)
        rows = {"positions": positions, "sequences": [number] * len(positions)}
        other = builder.add({"op": "forward", **rows}, step.tags[: len(positions)])
        seen = ("visible", "caches", "states", "error")
        answer = {name: step.answer[name] for name in seen if name in step.answer}
        if answer:
            builder.claim(step, other, answer)


class Rename(SlotRelation):
    """With other names for the users, and other numbers for the tokens, all answers are
    the same."""

    name = "rename"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        users = {"a": "b", "b": "c", "c": "d", "d": "a"}
        builder = Builder(history)
        for step in history.steps:
            op = {**step.op, **rename_told(step.op)}
            if "user" in op:
                op["user"] = users.get(op["user"], op["user"])
            builder.claim(step, builder.add(op, step.tags), view=rename_answered)
        return builder.build("with other users and other tokens")


class Cut(SlotRelation):
    """In how many passes tokens come changes nothing, where no window slides, no state is
    read, and the conversation is not too long."""

    name = "cut"

    def list_own(self, history: History) -> Sequence[int]:
        if not is_pure(history):
            return []
        choices = []
        for step, book in SlotBook.along(history):
            positions = step.answer.get("positions", ())
            held = len(book.slots.get(book.users.get(get_user(step), -1), ()))
            fits = len(positions) > 1 and positions[0] == held
            if step.name == "feed" and fits and "error" not in step.answer:
                choices.append(step.number)
        return choices

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        for step in history.steps:
            if step.number != choice:
                builder.take(step)
                continue
            rows = range(len(step.answer["positions"]))
            at = (len(rows) + 1) // 2
            first = {**step.op, "count": at, "generate": []}
            second = {**step.op, "count": len(rows) - at}
            other = builder.add(first, step.tags[:at])
            builder.claim(
                step, other, take_rows(step.answer, rows[:at], ()), rows=rows[:at]
            )
            other = builder.add(second, step.tags[at : len(rows)])
            more = ("tokens", "remaining", "offsets")
            answer = take_rows(step.answer, rows[at:], more)
            builder.claim(step, other, answer, rows=rows[at:])
        return builder.build("with one pass cut in two")


def take_rows(answer: Answer, rows: Sequence[int], more: Sequence[str]) -> Answer:
    """The part of an answer that is about some rows."""
    part: Answer = {name: answer[name] for name in more}
    if "visible" in answer:
        part["visible"] = [answer["visible"][row] for row in rows]
    if "caches" in answer:
        part["caches"] = [take_rows(one, rows, ()) for one in answer["caches"]]
    part["positions"] = [answer["positions"][row] for row in rows]
    if "positions" not in answer:
        del part["positions"]
    return part
