"""Relations alone, swap and rename of unified caches: sequences do not concern each
other, and their numbers are only names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.unified.simpler import rename_owner
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.independent import (
    AloneBase,
    Reach,
    SwapBase,
    Things,
)
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import SLIDING, has_kind, slides
from lockstep.harness.execution.metamorphic.unified.passes import is_pass


class UnifiedReach(Reach):
    """Things are sequences by their numbers, "image" (the one that an encoder keeps),
    "pass" (what get and put read: the pass that is open) and ("saved", name).

    A cache whose window slides may let go of tokens of any sequence in any pass, so there
    a pass needs and changes all sequences. What was refused may depend on how much there
    is room for, so it needs all of them, too.
    """

    @classmethod
    def of(cls, history: History) -> UnifiedReach:
        return cls(history)

    def __init__(self, history: History) -> None:
        config = history.program.config
        self.all: set[Any] = {*range(config["sequences"]), "image"}
        self.shares = any(step.name == "copy_prefix" for step in history.steps)
        self.slides = slides(config)
        self.is_wrapper = config["kind"] == "wrapper"
        self.has_image = has_kind(config, "encoder")
        self.watches = any(step.name in ("get", "put") for step in history.steps)

    def get_needs(self, step: Step) -> Things:
        op, error = step.op, step.answer.get("error")
        if step.name in ("get", "put"):
            return {"pass"} | ({"image"} if self.has_image else set())
        if step.name == "load":
            return {("saved", op["from"])}
        if error == "usage" or step.name == "open":
            return set()
        if error or step.name == "save":
            return set(self.all)
        if step.name == "forward":
            image = {"image"} if self.has_image else set()
            return set(self.all) if self.slides else {*op["sequences"]} | image
        if step.name == "copy_prefix":
            return {op["source"], op["target"]}
        if step.name == "remove" and self.shares and op["end"] is not None:
            return set(self.all)
        return {op["sequence"]}

    def get_changes(self, step: Step) -> Things:
        op, error = step.op, step.answer.get("error")
        if error == "usage" or step.name in ("get", "put", "can_resume", "open"):
            return set()
        if step.name == "save":
            return {("saved", op["into"])}
        watched = {"pass"} if self.watches else set()
        if error and step.name != "forward" and not self.is_wrapper:
            return set()
        if error or step.name == "load":
            return self.all | watched
        if step.name == "forward":
            if op["reserve"]:
                return watched
            image = {"image"} if op["multimodal"] and self.has_image else set()
            own = set(self.all) if self.slides else {*op["sequences"]} | image
            return own | watched
        if step.name == "copy_prefix":
            return {op["target"]} | watched
        image = {"image"} if self.has_image else set()
        return {op["sequence"]} | image | watched

    def get_renewed(self, step: Step) -> Things:
        if is_pass(step) or step.name == "load":
            return {"pass"}
        return self.get_changes(step) if step.name == "save" else set()


class Alone(AloneBase):
    """But for refusals: what is left out may have taken the room for something."""

    reach = UnifiedReach
    excused = ("cache-full",)

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step in history.steps[:-1] if "error" not in step.answer]


class Swap(SwapBase):
    reach = UnifiedReach
    excused = ("cache-full",)

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", *SLIDING)


class Rename(Relation):
    """With other numbers for the sequences, and other names for what was saved, all
    answers are the same."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        return [1, -1] if history.program.config["sequences"] > 1 else []

    def derive(self, history: History, choice: int) -> Derived | None:
        count = history.program.config["sequences"]
        builder = Builder(history)
        new = {owner: (choice * owner + 1) % count for owner in range(count)}
        names = {"into": {"x": "y", "y": "x"}, "from": {"x": "y", "y": "x"}}
        for step in history.steps:
            op = dict(rename_owner(step.op, new))
            for field, others in names.items():
                if field in op:
                    op[field] = others.get(op[field], op[field])
            builder.take(step, **op)
        return builder.build("with the sequences renamed")
