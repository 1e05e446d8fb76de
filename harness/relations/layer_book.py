"""Which tokens the caches and snapshots of a layer program have left, as lists of tags.

It believes what was answered (how many tokens were trimmed, whether a restore was done,
what a snapshot spans) and knows nothing of windows, rings or the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.contracts.base import Op
from harness.relations.derived import Step

Tags = list[int]


@dataclass
class Put:
    """A snapshot of [begin, end). tokens: all from the beginning of the sequence to
    `end`, those before `begin` as they were then."""

    tokens: Tags
    begin: int
    end: int


@dataclass
class Held:
    """A cache. tokens: those that are left. due: scheduled offsets, until they are taken.
    reached: offset → the tokens when a write got there."""

    tokens: Tags = field(default_factory=list)
    due: list[int] | None = None
    reached: dict[int, Tags] = field(default_factory=dict)


class LayerBook:
    """What is left before a step of a program."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.caches: dict[str, Held] = {"a": Held()}
        self.snapshots: dict[str, Put] = {}

    def get(self, name: str) -> Held:
        return self.caches.setdefault(name, Held())

    def is_scheduled(self) -> bool:
        return any(cache.due is not None for cache in self.caches.values())

    def write(self, step: Step) -> None:
        """Enters what a step has done."""
        if "error" not in step.answer:
            enter = ENTER.get(step.name)
            if enter:
                enter(self, step)

    def update(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        before = len(cache.tokens)
        cache.tokens = [*cache.tokens, *step.tags]
        for offset in cache.due or ():
            if before < offset <= len(cache.tokens):
                cache.reached.setdefault(offset, cache.tokens[:offset])

    def trim(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        cache.tokens = cache.tokens[: len(cache.tokens) - step.answer["trimmed"]]

    def clone(self, step: Step) -> None:
        tokens = list(self.get(step.op["cache"]).tokens)
        self.caches[step.op["into"]] = Held(tokens)

    def free(self, step: Step) -> None:
        self.caches[step.op["cache"]] = Held()

    def restore(self, step: Step) -> None:
        if not step.answer["ok"]:
            return
        cache, name = self.get(step.op["cache"]), step.op["snapshot"]
        if name is not None:
            put = self.snapshots[name]
            below = cache.tokens[: put.begin] if self.kind == "kv" else []
            cache.tokens = [*below, *put.tokens[len(below) :]]
        cache.tokens = cache.tokens[: step.op["target"]]

    def snapshot(self, step: Step) -> None:
        tokens = self.get(step.op["cache"]).tokens
        self.put(step.op["into"], step.answer["range"], tokens)

    def put(self, name: str, span: Sequence[int] | None, tokens: Tags) -> None:
        self.snapshots.pop(name, None)
        if span is not None:
            self.snapshots[name] = Put(tokens[: span[1]], *span)

    def split(self, step: Step) -> None:
        whole = self.snapshots.pop(step.op["snapshot"])
        for side in ("parent", "child"):
            self.put(step.op[side], step.answer[side], whole.tokens)

    def merge(self, step: Step) -> None:
        sides = [self.snapshots.pop(step.op[side], None) for side in ("parent", "child")]
        parent, child = sides
        tokens = [] if child is None else list(child.tokens)
        if parent and child and self.kind == "kv":
            tokens = [*parent.tokens[: child.begin], *child.tokens[child.begin :]]
        self.put(step.op["into"], step.answer["range"], tokens)

    def close(self, step: Step) -> None:
        del self.snapshots[step.op["snapshot"]]

    def prepare(self, step: Step) -> None:
        self.get(step.op["cache"]).due = list(step.op["offsets"]) or None

    def take(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        for name, span in zip(step.op["into"], step.answer["ranges"], strict=False):
            self.put(name, span, cache.reached.get(span[1], []) if span else [])
        cache.due, cache.reached = None, {}


ENTER: Mapping[str, Any] = {
    name: getattr(LayerBook, name)
    for name in (
        "update", "trim", "clone", "free", "restore", "snapshot", "split", "merge",
        "close", "prepare", "take",
    )
}  # fmt: skip


# --- what an operation needs, and what it changes ---------------------------------------

Things = set[tuple[str, str]]
"""("cache", name) or ("snapshot", name)."""


def get_needs(op: Op) -> Things:
    """What the answer of an operation, and what it leaves behind, depend on."""
    name, cache = op["op"], ("cache", op["cache"])
    if name == "split":
        return {("snapshot", op["snapshot"])}
    if name == "merge":
        return {("snapshot", op[side]) for side in ("parent", "child") if op[side]}
    if name == "close":
        return {("snapshot", op["snapshot"])}
    if name == "free":
        return set()
    snapshot = op.get("snapshot")
    return {cache} | ({("snapshot", snapshot)} if snapshot else set())


def get_changes(op: Op) -> Things:
    """What it may leave otherwise than it was."""
    name, cache = op["op"], ("cache", op["cache"])
    if name in ("update", "trim", "free", "restore", "prepare"):
        return {cache}
    if name == "clone":
        return {("cache", op["into"])}
    if name == "take":
        return {cache} | {("snapshot", into) for into in op["into"]}
    fields = ("snapshot", "parent", "child", "into")
    return {("snapshot", op[field]) for field in fields if op.get(field)}
