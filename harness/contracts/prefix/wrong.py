"""The operations that only break rules of usage, one class each: whatever they ask for
must be refused, and where a cache could do it they are illegal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts.prefix.operation import Model, PrefixOperation, Subject
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.prefix.slots_subject import SlotsSubject
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import MAX_LENGTH, Schema, integer, optional
from lockstep.reference.slots import Slots
from lockstep.reference.trie import Trie


def ask(call: Callable[[], Any]) -> Answer:
    """What the reference says to a call that should be refused."""
    try:
        call()
    except ValueError:
        return {"error": "usage"}
    return {}


class WrongOperation(PrefixOperation):
    """It is never drawn as one that is allowed."""

    def draw(self, source: Source, model: Model) -> Op | None:
        return None


SIZES = ("interval", "context", "keep")


class Open(WrongOperation):
    """One more cache, of sizes that no cache has: of a trie the interval, of slots how
    many tokens stay of how many."""

    name = "open"
    fields: ClassVar[Mapping[str, Schema]] = {
        name: optional(integer(-8, 64)) for name in SIZES
    }

    def illegal_here(self, op: Op, model: Model) -> str | None:
        return None if self.expect(op, model) else "there are such caches"

    def expect(self, op: Op, model: Model) -> Answer:
        config = self.get_config(op, model.config)
        if isinstance(model, SlotsModel):
            context, keep = config["context"], config["keep"]
            return ask(lambda: Slots(model.pool, 1, context, keep))
        return ask(lambda: Trie((), list, interval=config["interval"]))

    def observe(self, op: Op, subject: Subject, model: Model) -> Answer:
        config = self.get_config(op, subject.given)
        return subject.ask(lambda: subject.backend.open(config) and None)

    def get_config(self, op: Op, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**config, **{name: op[name] for name in SIZES if op[name] is not None}}

    def describe(self, op: Op) -> str:
        sizes = [f"{name} {op[name]}" for name in SIZES if op[name] is not None]
        return f"open a cache with {', '.join(sizes) or 'the same sizes'}"


class SlotOperation(WrongOperation):
    """What an engine asks of a slot in the course of a pass, at the wrong time."""

    fields: ClassVar[Mapping[str, Schema]] = {
        "slot": integer(-8, 16),
        "count": integer(-8, MAX_LENGTH),
    }

    def illegal_here(self, op: Op, model: SlotsModel) -> str | None:
        slots = model.slots
        if op["slot"] not in range(len(slots.slots)):
            return None
        slot = slots.slots[op["slot"]]
        if not slot.in_use or op["count"] not in self.list_allowed(slots, op["slot"]):
            return None
        return "it is allowed now, and part of a pass"

    def list_allowed(self, slots: Slots, number: int) -> range:
        """What `count` may be, of a slot that is in use."""
        raise NotImplementedError

    def expect(self, op: Op, model: SlotsModel) -> Answer:
        return ask(lambda: getattr(model.slots, self.name)(op["slot"], op["count"]))

    def observe(self, op: Op, subject: SlotsSubject, model: SlotsModel) -> Answer:
        call = getattr(subject.cache, self.name)
        return subject.ask(lambda: call(op["slot"], op["count"]) and None)

    def describe(self, op: Op) -> str:
        return f"{self.name} {op['count']} tokens in slot {op['slot']}"


class Reserve(SlotOperation):
    name = "reserve"

    def list_allowed(self, slots: Slots, number: int) -> range:
        left = len(slots.slots[number].remaining)
        return range(1, min(left, slots.context - slots.keep) + 1)


class Commit(SlotOperation):
    name = "commit"

    def list_allowed(self, slots: Slots, number: int) -> range:
        reserved = slots.slots[number].reserved
        return range(reserved, reserved + 1)
