"""Relations alone, swap and rename of layer caches: operations on different caches and
snapshots do not concern each other, and names are only names."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.contracts.layer.operations import OPERATIONS
from lockstep.harness.contracts.naming import list_names, rename
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
        steps = history.steps
        snapshots = any(list_names(step.op, OPERATIONS, "snapshot") for step in steps)
        return [0] if len(names) > 1 or snapshots else []

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        caches = rotate_names(history, "cache")
        snapshots = rotate_names(history, "snapshot")
        for step in history.steps:
            op = rename(step.op, OPERATIONS, "snapshot", snapshots)
            builder.take(step, **rename(op, OPERATIONS, "cache", caches))
        return builder.build("with the names exchanged")


def rotate_names(history: History, what: str) -> dict[str, str]:
    """Each name of a "cache" or a "snapshot" → the next one, in their order."""
    steps = history.steps
    found = (name for step in steps for name in list_names(step.op, OPERATIONS, what))
    names = sorted(set(found))
    return dict(zip(names, [*names[1:], *names[:1]], strict=True))
