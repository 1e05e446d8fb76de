"""What the caches and snapshots of a layer program hold, as lists of tags.

After an update with 4 tokens and a trim by 1, cache "a" holds [0, 1, 2]; after one more
update with 2 tokens [0, 1, 2, 4, 5]. A window is no concern of the book: what slid out of
it stays in the list, and relation mask says which of these tokens are still seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from lockstep.harness.execution.metamorphic.derived import Builder
from lockstep.harness.execution.metamorphic.history import Book, History, Step

Tags = list[int]


@dataclass
class HeldSnapshot:
    """A snapshot of the positions from `begin` up to `end`, without it. tokens: all of
    the sequence up to `end`; those before `begin` as they were when it was taken."""

    tokens: Tags
    begin: int
    end: int


@dataclass
class HeldCache:
    """A cache. tokens: those that are left. due: the offsets that are scheduled for
    capture, until the captures are taken. reached: for each of them, the tokens when a
    write first got there."""

    tokens: Tags = field(default_factory=list)
    due: list[int] | None = None
    reached: dict[int, Tags] = field(default_factory=dict)


class LayerBook(Book):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.caches: dict[str, HeldCache] = {"a": HeldCache()}
        self.snapshots: dict[str, HeldSnapshot] = {}

    @classmethod
    def open(cls, history: History) -> Self:
        return cls(history.program.kind)

    def get(self, name: str) -> HeldCache:
        return self.caches.setdefault(name, HeldCache())

    def is_scheduled(self) -> bool:
        return any(cache.due is not None for cache in self.caches.values())

    def write(self, step: Step) -> None:
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
        self.caches[step.op["into"]] = HeldCache(tokens)

    def free(self, step: Step) -> None:
        self.caches[step.op["cache"]] = HeldCache()

    def restore(self, step: Step) -> None:
        """A snapshot of full attention brings its own range only: what the cache holds
        below it stays. Any other brings all."""
        if not step.answer["ok"]:
            return
        cache, name = self.get(step.op["cache"]), step.op["snapshot"]
        if name is not None:
            taken = self.snapshots[name]
            below = cache.tokens[: taken.begin] if self.kind == "kv" else []
            cache.tokens = [*below, *taken.tokens[len(below) :]]
        cache.tokens = cache.tokens[: step.op["target"]]

    def snapshot(self, step: Step) -> None:
        tokens = self.get(step.op["cache"]).tokens
        self.put(step.op["into"], step.answer["range"], tokens)

    def put(self, name: str, span: Sequence[int] | None, tokens: Tags) -> None:
        """Puts a snapshot of a range under a name; without a range there is none."""
        self.snapshots.pop(name, None)
        if span is not None:
            self.snapshots[name] = HeldSnapshot(tokens[: span[1]], *span)

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


def add_update(builder: Builder, cache: str, tags: Sequence[int]) -> int:
    """An update with tokens that stand for these; its number."""
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)
