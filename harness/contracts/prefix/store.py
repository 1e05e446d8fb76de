"""The operations on what is stored between requests, and on what the next one meets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.operation import (
    NUMBERS,
    Model,
    PrefixOperation,
    Subject,
)
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.prefix.subject import ConversationSubject
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import DERIVED, Schema, integer, optional


class Refuse(PrefixOperation):
    """The caches below refuse what they could do: layers to go back, the cache under
    slots to be cut."""

    name = "refuse"
    fields: ClassVar[Mapping[str, Schema]] = {
        "layers": {**NUMBERS, "default": []},
        "raising": {"type": "boolean", "default": False},
    }

    def draw(self, source: Source, model: Model) -> Op | None:
        if isinstance(model, SlotsModel):
            return {"op": self.name}
        if self.is_open({}, model):
            return None
        layers = len(model.config["layers"])
        chosen = sorted({source.below(layers), source.below(layers)})
        raising = {"raising": True} if source.below(2) else {}
        return {"op": self.name, "layers": chosen, **raising}

    def expect(self, op: Op, model: Model) -> Answer:
        if isinstance(model, SlotsModel):
            model.pool.refusing = True
        else:
            model.refusing = op["layers"]
        return {}

    def observe(self, op: Op, subject: Subject, model: Model) -> Answer:
        if isinstance(subject, ConversationSubject):
            subject.refusing, subject.raising = op["layers"], op["raising"]
        return {}

    def describe(self, op: Op) -> str:
        layers = ", ".join(map(str, op["layers"]))
        how = "raise an error" if op["raising"] else "refuse"
        whose = f"layers {layers} should go back, they" if layers else "it is cut, it"
        return f"the next time {whose} {how}" + ("" if layers else "s")


class Checkpoint(PrefixOperation):
    name = "checkpoint"
    fields: ClassVar[Mapping[str, Schema]] = {"offsets": NUMBERS}

    def draw(self, source: Source, model: Model) -> Op | None:
        if self.is_open({}, model):
            return None
        near = [len(path) - less for path in model.list_stored() for less in (0, 1)]
        near = [offset for offset in near if offset > 0] or [1]
        count = 1 + source.below(2)
        offsets = [  # in any order, and one perhaps twice
            source.pick(near) if source.below(2) else source.between(1, model.reach)
            for _ in range(count)
        ]
        return {"op": self.name, "offsets": offsets}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        model.checkpoints = op["offsets"]
        return {}

    def observe(self, op: Op, subject: ConversationSubject, model: Model) -> Answer:
        subject.checkpoints = op["offsets"]
        return {}

    def describe(self, op: Op) -> str:
        offsets = ", ".join(map(str, op["offsets"]))
        return f"the next request is to be captured after {offsets} tokens"


class Count(PrefixOperation):
    name = "count"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def draw(self, source: Source, model: Model) -> Op | None:
        return {"op": self.name}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.describe_store()

    def observe(self, op: Op, subject: ConversationSubject, model: Model) -> Answer:
        return subject.count()

    def describe(self, op: Op) -> str:
        return "count what is stored"


class Free(PrefixOperation):
    name = "free"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def draw(self, source: Source, model: Model) -> Op | None:
        if self.is_open({}, model) or source.below(3):
            return None
        return {"op": self.name}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.free()

    def observe(
        self, op: Op, subject: ConversationSubject, model: ConversationModel
    ) -> Answer:
        return subject.free(model)

    def describe(self, op: Op) -> str:
        return "free everything"


class Limit(PrefixOperation):
    name = "limit"
    fields: ClassVar[Mapping[str, Schema]] = {
        "bytes": {**optional(integer(-1, 1 << 40)), DERIVED: True}
    }

    def draw(self, source: Source, model: Model) -> Op | None:
        if not isinstance(model, ConversationModel):
            return None
        parting_first = any(not older for older in model.list_partings().values())
        few = len(model.list_stored()) < 4
        if few and not parting_first and source.below(8):
            return None
        held = model.describe_store().get("bytes", 0)
        limits = [held - 1, held // 2, None, held - 1, held * 5 // 6, held, 0, None]
        if parting_first and source.below(2):
            limits = [held - 1, held * 2 // 3]
        limit = source.pick(limits)
        return {"op": self.name, "bytes": limit if limit is None else max(0, limit)}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.set_limit(op["bytes"])

    def observe(
        self, op: Op, subject: ConversationSubject, model: ConversationModel
    ) -> Answer:
        return subject.change(lambda: subject.cache.set_limit(op["bytes"]), model)

    def describe(self, op: Op) -> str:
        held = "anything" if op["bytes"] is None else f"{op['bytes']} bytes"
        return f"store at most {held} from now on"
