"""Relation return of layer caches: to come back is never to have left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.layer.book import (
    HeldCache,
    LayerBook,
    add_update,
)
from lockstep.harness.execution.metamorphic.relation import Relation

DETOURS = {
    "snapshot": "snapshot, other tokens, restore",
    "late": "snapshot of the later half, other tokens, restore",
    "split": "snapshot, its later half split off, other tokens, restore of that",
    "merged": "snapshot, split and merged, other tokens, restore",
    "joined": "snapshots of all and of one more token, merged, restore",
    "freed": "snapshot, free, other tokens, restore",
    "fork": "a clone goes elsewhere",
    "exchange": "the cache goes elsewhere, and its clone takes its place",
    "captured": "a capture, other tokens, restore of what was captured",
    "refused": "what has slid out, or was read, cannot be taken back",
    "trim": "trim, the same tokens again",
    "rewind": "restore an earlier offset, the same tokens again",
}


class Return(Relation):
    """After a detour that ends where it began, all is as if nothing had been.

    Before one step of the program, a cache that holds tokens 0, 1, 2 is led away, by one
    of `DETOURS`, and back to 0, 1, 2: say, a snapshot, other tokens, a restore. From that
    step on all must be answered as before. What the detour itself answers is claimed too:
    a trim by 2 must answer that 2 were trimmed.
    """

    name = "return"

    def list_choices(self, history: History) -> Sequence[Any]:
        choices: list[Any] = []
        for step, book in LayerBook.along(history):
            held = book.get(step.op["cache"])
            if held.tokens and held.due is None:
                ways = ["snapshot", "late", "freed", "fork", "exchange"]
                if history.program.kind == "kv" and len(held.tokens) > 1:
                    ways += ["split", "merged", "joined", "captured"]
                if may_trim(history, held):
                    ways += ["trim", "rewind"]
                elif history.program.kind != "kv":
                    ways.append("refused")
                choices += [(step.number, way) for way in ways]
        return choices

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        book, builder = LayerBook.before(history, number), Builder(history)
        for step in history.steps:
            if step.number == number:
                tokens = book.get(step.op["cache"]).tokens
                Detour(builder, step, tokens).go(way)
            if step.number < number:
                builder.add(step.op, step.tags)
            else:
                builder.take(step)
        return builder.build(f"after a detour ({DETOURS[way]})")


def may_trim(history: History, held: HeldCache) -> bool:
    """Nothing has slid out, nor was folded into a state."""
    window = history.program.config["window"]
    return history.program.kind == "kv" or (
        window is not None and len(held.tokens) <= window
    )


class Detour:
    """Leads the cache of a step away and back. tokens: what it holds. The snapshot, or
    the clone, that is needed on the way is called r0."""

    def __init__(self, builder: Builder, step: Step, tokens: Sequence[int]) -> None:
        self.builder = builder
        self.step = step
        self.cache = str(step.op["cache"])
        self.tokens = tokens

    def go(self, way: str) -> None:
        if way == "captured":
            self.capture()
        elif way == "joined":
            self.join()
        elif way == "refused":
            self.be_refused()
        elif way in ("fork", "exchange"):
            self.clone(way)
        elif way in ("trim", "rewind"):
            self.repeat(way)
        else:
            self.restore(way)

    def add(self, name: str, **fields: Any) -> int:
        """One more operation on the cache; its number."""
        return self.builder.add({"op": name, "cache": self.cache, **fields})

    def promise(self, other: int, **answer: Any) -> None:
        self.builder.promise(self.step, other, answer)

    def wander(self, cache: str | None = None) -> None:
        """To other tokens."""
        cache = cache or self.cache
        self.add("update", length=1, cache=cache)
        self.add("trim", count=2, cache=cache)
        self.add("update", length=3, cache=cache)

    def be_refused(self) -> None:
        """Goes nowhere: neither a trim nor a restore without a snapshot may go back."""
        length = len(self.tokens)
        self.promise(self.add("trim", count=1), trimmed=0, offset=length)
        back = self.add("restore", snapshot=None, target=length - 1)
        self.promise(back, ok=False, offset=length)

    def clone(self, way: str) -> None:
        """The clone goes elsewhere; or the cache does, and becomes its clone again."""
        self.add("clone", into="r0")
        self.wander("r0" if way == "fork" else self.cache)
        if way == "exchange":
            self.add("clone", into=self.cache, cache="r0")
        self.add("free", cache="r0")

    def repeat(self, way: str) -> None:
        """The later half goes and comes again."""
        length = len(self.tokens)
        less = (length + 1) // 2
        left = length - less
        if way == "trim":
            other = self.add("trim", count=less)
            self.promise(other, offset=left, trimmed=less)
        else:
            other = self.add("restore", snapshot=None, target=left)
            self.promise(other, offset=left, ok=True)
        add_update(self.builder, self.cache, self.tokens[left:])

    def restore(self, way: str) -> None:
        """A snapshot, other tokens, and a restore."""
        self.take_snapshot(way)
        if way == "freed":
            self.add("free")
        if way not in ("late", "split"):  # these bring back the later half only
            self.wander()
        self.add("update", length=2)
        length = len(self.tokens)
        back = self.add("restore", snapshot="r0", target=length)
        self.promise(back, ok=True, offset=length)
        self.add("close", snapshot="r0")

    def take_snapshot(self, way: str) -> None:
        """Of all, or of the later half: taken as such, or split off."""
        middle = len(self.tokens) // 2
        self.add("snapshot", **{"from": middle if way == "late" else 0}, into="r0")
        sides = {"parent": "r1", "child": "r0"}
        if way in ("split", "merged"):
            self.add("split", snapshot="r0", at=middle, **sides)
        if way == "merged":
            self.add("merge", **sides, into="r0")
        if way == "split":
            self.add("close", snapshot="r1")

    def join(self) -> None:
        """A snapshot stays as it was, though the cache goes on: one of all, and one of
        the next token, are merged. Restored, they bring each token once."""
        length, first = len(self.tokens), self.tokens[0]
        self.add("snapshot", **{"from": 0}, into="r0")
        add_update(self.builder, self.cache, [first])
        self.add("snapshot", **{"from": length}, into="r1")
        self.add("merge", parent="r0", child="r1", into="r0")
        self.add("update", length=1)
        back = self.add("restore", snapshot="r0", target=length + 1)
        self.promise(back, ok=True, offset=length + 1)
        self.promise(self.add("state"), tags=[*self.tokens, first])
        self.add("trim", count=1)
        self.add("close", snapshot="r0")

    def capture(self) -> None:
        """What was captured stays as it was, though other tokens come by: the first token
        once more is captured, goes, and two others take its place."""
        length, first = len(self.tokens), self.tokens[0]
        self.add("prepare", offsets=[length + 1])
        add_update(self.builder, self.cache, [first])
        self.add("trim", count=1)
        self.add("update", length=2)
        self.promise(self.add("take", into=["r0"]), ranges=[[length, length + 1]])
        self.add("restore", snapshot="r0", target=length + 1)
        self.promise(self.add("state"), tags=[*self.tokens, first])
        self.add("trim", count=1)
        self.add("close", snapshot="r0")
