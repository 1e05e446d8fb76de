"""Slots: the shadow state, and the relations pool and oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.prefix.config import get_unified_config
from lockstep.harness.execution.metamorphic.prefix import rename_lists
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Case,
    Cases,
    Derived,
    Family,
    History,
    Part,
    Relation,
    ShadowState,
    Step,
)
from lockstep.harness.execution.metamorphic.unified import add_removal
from lockstep.harness.programs.program import Program

USERS = {"a": "b", "b": "c", "c": "d", "d": "a"}


def count_common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the common beginning of two conversations."""
    length = min(len(left), len(right))
    return next((at for at in range(length) if left[at] != right[at]), length)


class SlotShadow(ShadowState):
    """The tokens that each slot says it holds.

    Attributes:
        slots: number → the tokens in it.
        users: user → the slot of the open request.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.slots: dict[int, list[int]] = {}
        self.users: dict[str, int] = {}

    def write(self, step: Step) -> None:
        answer, user = step.answer, get_user(step)
        if step.name == "begin" and "slot" in answer:
            self.users[user] = answer["slot"]
        if user in self.users and "tokens" in answer:
            self.slots[self.users[user]] = list(answer["tokens"])
        if step.name in ("close", "cancel"):
            self.users.pop(user, None)

    def rebuild(self, builder: Builder) -> bool:
        """Never: which slot was used when is not told; relation pool stands for it."""
        return False

    def rename(self, op: Op) -> Op:
        user = {"user": USERS.get(op["user"], op["user"])} if "user" in op else {}
        return {**rename_lists(op), **user}

    def rename_answer(self, answer: Answer) -> Answer:
        return rename_lists(answer)

    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        """None: relation pool makes each pass in the cache below, where it can be cut."""
        return []


def get_user(step: Step) -> str:
    """Whose request an operation is about."""
    return str(step.op.get("user", "a"))


class Pool(Relation):
    """Slots are calls of one cache with many sequences, one sequence for each slot. The
    same calls are made by hand, and the rows of a pass must see the same.

    A request in slot 1 that keeps 3 tokens is a removal from position 3 on of sequence 1.
    One that gets what another slot has is a copy of a prefix. One that is too long loses
    its middle: the removal of a range.
    """

    name = "pool"

    def list_choices(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = history.program.config
        changes = get_unified_config(config)
        builder = Builder(history, contract="unified", **changes)
        for step, state in history.along():
            slot = state.users.get(get_user(step))
            if step.name == "begin" and "slot" in step.answer:
                self.begin(builder, step, state.slots, config["several_users"])
            elif step.name in ("feed", "break") and "positions" in step.answer:
                self.compute(builder, step, slot, len(state.slots[slot]), config["keep"])
            elif step.name in ("close", "cancel") and slot is not None:
                add_removal(builder, slot, len(step.answer["tokens"]))
        return builder.build("the cache below, asked the same by hand")

    def begin(
        self, builder: Builder, step: Step, slots: Mapping[int, Any], several_users: bool
    ) -> None:
        """One of several users gets a copy of what the best slot has, if that is more
        than its own slot has."""
        own, tokens = step.answer["slot"], step.op["tokens"]
        kept = len(step.answer["tokens"])
        common = {one: count_common(held, tokens) for one, held in slots.items()}
        best = max(common, key=lambda one: (common[one], -one), default=own)
        longest = common.get(best, 0)
        if several_users and kept and common.get(own, 0) < longest:
            fork = {"source": best, "target": own, "length": longest}
            builder.add({"op": "copy_prefix", **fork})
        add_removal(builder, own, kept)

    def compute(
        self, builder: Builder, step: Step, slot: int, held: int, keep: int
    ) -> None:
        positions = step.answer["positions"]
        if positions[0] == 0 and held:
            add_removal(builder, slot, 0)
        elif positions[0] < held:
            add_removal(builder, slot, keep, keep + held - positions[0])
        rows = {"positions": positions, "sequences": [slot] * len(positions)}
        other = builder.add({"op": "forward", **rows}, step.tags[: len(positions)])
        seen = ("visible", "caches", "states", "error")
        answer = {name: step.answer[name] for name in seen if name in step.answer}
        if answer:
            builder.claim(step, other, answer)


def ask_whole(builder: Builder, *tokens: int) -> int:
    """A whole request; the number of the operation that began it."""
    other = builder.add({"op": "begin", "tokens": list(tokens)})
    for _ in tokens:
        builder.add({"op": "feed", "count": 1})
    builder.add({"op": "close"})
    return other


def is_wide(builder: Builder, several_users: bool) -> bool:
    config = builder.config
    fits = config["slots"] > 1 and config["context"] > 3
    return bool(fits and config["several_users"] == several_users)


def take_longest(builder: Builder, step: Step) -> None:
    """A single user gets the free slot that has most of the conversation."""
    if is_wide(builder, several_users=False):
        builder.add({"op": "begin", "tokens": [80], "user": "b"})
        ask_whole(builder, 81)
        builder.add({"op": "feed", "count": 1, "user": "b"})
        builder.add({"op": "close", "user": "b"})
        builder.promise(step, ask_whole(builder, 81, 70), {"remaining": [70]})


def take_oldest(builder: Builder, step: Step) -> None:
    """One of several users gets the slot that was not used for the longest time."""
    if is_wide(builder, several_users=True):
        for number in range(builder.config["slots"]):
            ask_whole(builder, 80 + number)
        ask_whole(builder, 80, 70)
        ask_whole(builder, 90)
        builder.promise(step, ask_whole(builder, 80, 70, 71), {"remaining": [71]})
        builder.promise(step, ask_whole(builder, 81), {"tokens": [], "remaining": [81]})


SLOT_CASES: Mapping[str, Case] = {
    "slots that two requests used at the same time": take_longest,
    "slots that all were used once, the first one twice": take_oldest,
}
SLOTS = {"slots": Family(SlotShadow, [Pool(), Cases("oldest", "begin", SLOT_CASES)])}
