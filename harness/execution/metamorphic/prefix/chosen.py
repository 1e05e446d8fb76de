"""Relations best and oldest of slots: which slot a request takes, and what it reuses."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.execution.metamorphic.prefix.book import SlotBook, count_same
from lockstep.harness.execution.metamorphic.prefix.conversations import (
    SlotRelation,
    is_pure,
)


class Best(SlotRelation):
    """A request finds the best that there is: it reuses as much as where there is a
    single slot that heard the best conversation, and nothing else. With several users it
    may be that of any slot, otherwise one that is free."""

    name = "best"

    def list_own(self, history: History) -> Sequence[int]:
        if not is_pure(history):
            return []
        return [
            step.number
            for step, book in SlotBook.along(history)
            if step.name == "begin" and "slot" in step.answer and not book.is_armed
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        step, book = history.get_step(choice), SlotBook.before(history, choice)
        config, tokens = history.program.config, step.op["tokens"]
        known = {
            number: held
            for number, held in book.slots.items()
            if config["several_users"] or number not in book.users.values()
        }
        told = max(known.values(), key=lambda held: count_same(held, tokens), default=[])
        builder = Builder(history, slots=1)
        if told:
            builder.add({"op": "begin", "tokens": told})
            for _ in told:
                builder.add({"op": "feed", "count": 1})
            builder.add({"op": "close"})
        other = builder.add({"op": "begin", "tokens": tokens})
        names = ("tokens", "remaining", "offsets")
        builder.claim(step, other, {name: step.answer[name] for name in names})
        return builder.build("of a single slot that heard the best conversation")


class Oldest(SlotRelation):
    """Which slot a request takes, in two plain programs. With several users: the one that
    was not used for the longest time. Otherwise: the free one that has most of the
    conversation."""

    name = "oldest"

    def list_own(self, history: History) -> Sequence[int]:
        config = history.program.config
        is_wide = config["slots"] > 1 and config["context"] > 3
        own = [step.number for step in history.steps if step.name == "begin"]
        return own[:1] if is_wide else []

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        step = history.get_step(choice)
        config = history.program.config

        def ask(*tokens: int) -> int:
            other = builder.add({"op": "begin", "tokens": list(tokens)})
            for _ in tokens:
                builder.add({"op": "feed", "count": 1})
            builder.add({"op": "close"})
            return other

        if not config["several_users"]:
            builder.add({"op": "begin", "tokens": [80], "user": "b"})
            ask(81)
            builder.add({"op": "feed", "count": 1, "user": "b"})
            builder.add({"op": "close", "user": "b"})
            builder.promise(step, ask(81, 70), {"remaining": [70]})
            return builder.build("of slots that two requests used at the same time")
        for number in range(config["slots"]):
            ask(80 + number)
        ask(80, 70)
        ask(90)
        builder.promise(step, ask(80, 70, 71), {"remaining": [71]})
        builder.promise(step, ask(81), {"tokens": [], "remaining": [81]})
        return builder.build("of slots that all were used once, the first twice")
