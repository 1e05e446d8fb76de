"""The relations of slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.contracts.base import Answer
from harness.contracts.prefix.config import get_unified_config
from harness.relations.conversations import count_same
from harness.relations.derived import Builder, Derived, History, Step
from harness.relations.relation import Relation

PURE = ("causal", "chunked")


@dataclass
class Desk:
    """slots: number → the tokens that it says it holds. users: who has which slot.
    is_armed: the cache is going to refuse something."""

    slots: dict[int, list[int]] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    is_armed: bool = False

    def write(self, step: Step) -> None:
        answer, user = step.answer, step.op.get("user", "a")
        if step.name == "refuse":
            self.is_armed = True
        if step.name == "begin" and "slot" in answer:
            self.users[user] = answer["slot"]
        if user in self.users and "tokens" in answer:
            self.slots[self.users[user]] = list(answer["tokens"])
        if step.name in ("close", "cancel"):
            self.users.pop(user, None)


def read_desks(history: History) -> Iterator[tuple[Step, Desk]]:
    """Each step, with what was there before it."""
    desk = Desk()
    for step in history.steps:
        yield step, desk
        desk.write(step)


class OfSlots(Relation):
    def is_about(self, kind: str) -> bool:
        return kind == "slots"

    def list_choices(self, history: History) -> Sequence[Any]:
        return self.list_own(history) if history.program.kind == "slots" else []

    def list_own(self, history: History) -> Sequence[Any]:
        raise NotImplementedError


class Pool(OfSlots):
    """Slots are calls of a cache of many sequences: what is kept is cut off, what is too
    long loses its middle, what another slot has more of is copied, and the rows of a pass
    see what they see there."""

    name = "pool"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = history.program.config
        changes = get_unified_config(config)
        builder = Builder(history, contract="unified", **changes)
        for step, desk in read_desks(history):
            user = step.op.get("user", "a")
            if step.name == "begin" and "slot" in step.answer:
                self.begin(builder, step, desk, config["several_users"])
            elif step.name in ("feed", "break") and "positions" in step.answer:
                number = desk.users[user]
                self.compute(builder, step, number, len(desk.slots[number]), config)
            elif step.name in ("close", "cancel") and user in desk.users:
                self.cut(builder, desk.users[user], len(step.answer["tokens"]))
        return builder.build("of the cache below, asked the same by hand")

    def begin(
        self, builder: Builder, step: Step, desk: Desk, several_users: bool
    ) -> None:
        """Of several users one gets a copy of what the best slot has, if that is more
        than its own slot has."""
        number, tokens = step.answer["slot"], step.op["tokens"]
        kept = len(step.answer["tokens"])
        common = {one: count_same(held, tokens) for one, held in desk.slots.items()}
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


class Rename(OfSlots):
    """Users have other names, and tokens other numbers."""

    name = "rename"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        users = {"a": "b", "b": "c", "c": "d", "d": "a"}
        builder = Builder(history)
        for step in history.steps:
            fields = [name for name in ("tokens", "generate") if name in step.op]
            op = {**step.op, **{name: swap(step.op[name]) for name in fields}}
            if "user" in op:
                op["user"] = users.get(op["user"], op["user"])
            builder.claim(step, builder.add(op, step.tags), view=swap_all)
        return builder.build("with other users and other tokens")


def swap(tokens: Sequence[Any]) -> list[Any]:
    return [9 - t if type(t) is int and 0 <= t <= 9 else t for t in tokens]


def swap_all(answer: Answer) -> Answer:
    lists = [name for name in ("tokens", "remaining") if name in answer]
    return {**answer, **{name: swap(answer[name]) for name in lists}}


class Cut(OfSlots):
    """A pass may come in two, where nothing slides, nothing is put aside as it goes, and
    nothing is too long."""

    name = "cut"

    def list_own(self, history: History) -> Sequence[int]:
        config = history.program.config
        if not {layer.partition(":")[0] for layer in config["layers"]} <= {*PURE}:
            return []
        choices = []
        for step, desk in read_desks(history):
            positions = step.answer.get("positions", ())
            held = len(desk.slots.get(desk.users.get(step.op.get("user", "a"), -1), ()))
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


class Best(OfSlots):
    """A request finds the best that there is: as much as where there is a single slot,
    and it heard just that."""

    name = "best"

    def list_own(self, history: History) -> Sequence[int]:
        config = history.program.config
        if not {layer.partition(":")[0] for layer in config["layers"]} <= {*PURE}:
            return []
        return [
            step.number
            for step, desk in read_desks(history)
            if step.name == "begin" and "slot" in step.answer and not desk.is_armed
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        step, desk = next(
            (step, desk) for step, desk in read_desks(history) if step.number == choice
        )
        config, tokens = history.program.config, step.op["tokens"]
        known = {
            number: held
            for number, held in desk.slots.items()
            if config["several_users"] or number not in desk.users.values()
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


class Oldest(OfSlots):
    """Who needs a slot takes that which was not used for the longest time; a single user
    the one that has the most of the conversation."""

    name = "oldest"

    def list_own(self, history: History) -> Sequence[int]:
        config = history.program.config
        is_wide = config["slots"] > 1 and config["context"] > 3
        own = [step.number for step in history.steps if step.name == "begin"]
        return own[:1] if is_wide else []

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        step = next(step for step in history.steps if step.number == choice)
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


RELATIONS: Sequence[Relation] = (Pool(), Rename(), Cut(), Best(), Oldest())
