"""Relations alone, swap and rename of layer caches: operations on different caches and
snapshots do not concern each other, and names are only names."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.contracts.layer.simpler import (
    FIELDS,
    get_fields,
    list_names,
    rename_in,
)
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.independent import (
    AloneBase,
    Reach,
    SwapBase,
    Things,
)
from lockstep.harness.execution.metamorphic.relation import Relation


class LayerReach(Reach):
    """Things are ("cache", name) and ("snapshot", name)."""

    @classmethod
    def of(cls, history: History) -> LayerReach:
        return cls()

    def get_needs(self, step: Step) -> Things:
        op, cache = step.op, ("cache", step.op["cache"])
        if step.name in ("split", "close"):
            return {("snapshot", op["snapshot"])}
        if step.name == "merge":
            return {("snapshot", op[side]) for side in ("parent", "child") if op[side]}
        if step.name == "free":
            return set()
        snapshot = op.get("snapshot")
        return {cache} | ({("snapshot", snapshot)} if snapshot else set())

    def get_changes(self, step: Step) -> Things:
        op, cache = step.op, ("cache", step.op["cache"])
        if step.name in ("update", "trim", "free", "restore", "prepare"):
            return {cache}
        if step.name == "clone":
            return {("cache", op["into"])}
        if step.name == "take":
            return {cache} | {("snapshot", into) for into in op["into"]}
        fields = ("snapshot", "parent", "child", "into")
        return {("snapshot", op[field]) for field in fields if op.get(field)}

    def get_renewed(self, step: Step) -> Things:
        return self.get_changes(step)


class Alone(AloneBase):
    reach = LayerReach

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step in history.steps[:-1]]


class Swap(SwapBase):
    reach = LayerReach


class Rename(Relation):
    """With the names of the caches exchanged, and those of the snapshots, all answers are
    the same: "update a, update b" as "update b, update a"."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        names = {step.op["cache"] for step in history.steps}
        snapshots = any(get_fields(step.op, "snapshot") for step in history.steps)
        return [0] if len(names) > 1 or snapshots else []

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        caches, snapshots = (rotate_names(history, what) for what in FIELDS)
        for step in history.steps:
            op = rename_in(rename_in(step.op, snapshots), caches, "cache")
            builder.take(step, **op)
        return builder.build("with the names exchanged")


def rotate_names(history: History, what: str) -> dict[str, str]:
    """Each name of a "cache" or a "snapshot" → the next one, in their order."""
    names = sorted({name for step in history.steps for name in list_names(step.op, what)})
    return dict(zip(names, [*names[1:], *names[:1]], strict=True))
