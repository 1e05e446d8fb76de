"""Layer caches: the shadow state, detours, and plain attention for every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from lockstep.harness.contracts.layer.operations import MAX_CACHES, OPERATIONS
from lockstep.harness.contracts.operation import Answer, Config, Op, list_names, rename
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
    History,
    Part,
    ShadowState,
    Step,
)
from lockstep.harness.programs.program import Program

Tags = list[int]


@dataclass
class HeldSnapshot:
    """A snapshot of the positions [begin, end).

    Attributes:
        tokens: the tokens of the sequence at [0, end); below `begin`, as they were when
            the snapshot was taken.
    """

    tokens: Tags
    begin: int
    end: int


@dataclass
class HeldCache:
    """A cache.

    Attributes:
        tokens: the tokens that are left.
        due: the offsets that are scheduled for capture, until the captures are taken.
        reached: each of these offsets → the tokens when a write first reached it.
    """

    tokens: Tags = field(default_factory=list)
    due: list[int] | None = None
    reached: dict[int, Tags] = field(default_factory=dict)


class LayerShadow(ShadowState):
    """The tokens in each cache and snapshot of a program.

    After an update with 4 tokens and a trim by 1, cache "a" holds [0, 1, 2]; after one
    more update with 2 tokens [0, 1, 2, 4, 5]. Tokens that slid out of a window stay in
    the list; relation mask says which of them are still seen.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kind = program.kind
        self.caches: dict[str, HeldCache] = {"a": HeldCache()}
        self.snapshots: dict[str, HeldSnapshot] = {}

    def get(self, name: str) -> HeldCache:
        return self.caches.setdefault(name, HeldCache())

    def write_update(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        before = len(cache.tokens)
        cache.tokens = [*cache.tokens, *step.tags]
        for offset in cache.due or ():
            if before <= offset <= len(cache.tokens):
                cache.reached.setdefault(offset, cache.tokens[:offset])

    def write_trim(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        cache.tokens = cache.tokens[: len(cache.tokens) - step.answer["trimmed"]]

    def write_clone(self, step: Step) -> None:
        tokens = list(self.get(step.op["cache"]).tokens)
        self.caches[step.op["into"]] = HeldCache(tokens)

    def write_free(self, step: Step) -> None:
        self.caches[step.op["cache"]] = HeldCache()

    def write_restore(self, step: Step) -> None:
        """Follows a restore: a snapshot of full attention brings its own range only, and
        the tokens below it stay. Any other snapshot brings all tokens."""
        if not step.answer["ok"]:
            return
        cache, name = self.get(step.op["cache"]), step.op["snapshot"]
        if name is not None:
            taken = self.snapshots[name]
            below = cache.tokens[: taken.begin] if self.kind == "kv" else []
            cache.tokens = [*below, *taken.tokens[len(below) :]]
        cache.tokens = cache.tokens[: step.op["target"]]

    def write_snapshot(self, step: Step) -> None:
        tokens = self.get(step.op["cache"]).tokens
        self.put(step.op["into"], step.answer["range"], tokens)

    def put(self, name: str, span: Sequence[int] | None, tokens: Tags) -> None:
        """Puts a snapshot of a range under a name; without a range there is none."""
        self.snapshots.pop(name, None)
        if span is not None:
            self.snapshots[name] = HeldSnapshot(tokens[: span[1]], *span)

    def write_split(self, step: Step) -> None:
        whole = self.snapshots.pop(step.op["snapshot"])
        for side in ("parent", "child"):
            self.put(step.op[side], step.answer[side], whole.tokens)

    def write_merge(self, step: Step) -> None:
        sides = [self.snapshots.pop(step.op[side], None) for side in ("parent", "child")]
        parent, child = sides
        tokens = [] if child is None else list(child.tokens)
        if parent and child and self.kind == "kv":
            tokens = [*parent.tokens[: child.begin], *child.tokens[child.begin :]]
        self.put(step.op["into"], step.answer["range"], tokens)

    def write_close(self, step: Step) -> None:
        del self.snapshots[step.op["snapshot"]]

    def write_prepare(self, step: Step) -> None:
        self.get(step.op["cache"]).due = list(step.op["offsets"]) or None

    def write_take(self, step: Step) -> None:
        cache = self.get(step.op["cache"])
        for name, span in zip(step.op["into"], step.answer["ranges"], strict=False):
            self.put(name, span, cache.reached.get(span[1], []) if span else [])
        cache.due, cache.reached = None, {}

    @cached_property
    def names(self) -> Mapping[str, Mapping[str, str]]:
        """For caches and for snapshots: each name in the program → the next one."""
        turned = {}
        for sort in ("snapshot", "cache"):
            each = (list_names(op, OPERATIONS, sort) for op in self.program.ops)
            names = sorted(set(chain.from_iterable(each)))
            turned[sort] = dict(zip(names, [*names[1:], *names[:1]], strict=True))
        return turned

    def rename(self, op: Op) -> Op:
        for sort, names in self.names.items():
            op = rename(op, OPERATIONS, sort, names)
        return op

    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        length = step.op.get("length", 0)
        if step.name != "update" or length < 2:
            return []
        return [
            [
                ({**step.op, "length": at}, range(at)),
                ({**step.op, "length": length - at}, range(at, length)),
            ]
            for at in sorted({1, length // 2, length - 1})
        ]

    def may_interrupt(self, step: Step) -> bool:
        is_scheduled = any(cache.due is not None for cache in self.caches.values())
        return not is_scheduled and len(self.names["cache"]) < MAX_CACHES

    def rebuild(self, builder: Builder) -> bool:
        """Rebuilds caches and snapshots; these are taken in a cache of another name."""
        held = [one.tokens for one in self.caches.values()]
        held += [one.tokens for one in self.snapshots.values()]
        if max(map(len, held)) > MAX_LENGTH:
            return False
        for name, snapshot in self.snapshots.items():
            if not snapshot.begin < snapshot.end == len(snapshot.tokens):
                return False  # only a capture has an empty range
            add_update(builder, "r0", snapshot.tokens)
            taken = {"from": snapshot.begin, "into": name}
            builder.add({"op": "snapshot", "cache": "r0", **taken})
            builder.add({"op": "free", "cache": "r0"})
        for name, cache in self.caches.items():
            if cache.tokens:
                add_update(builder, name, cache.tokens)
        return True

    def list_detours(self, step: Step) -> Sequence[str]:
        return [*DETOURS[self.kind]] if self.get(step.op["cache"]).tokens else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        DETOURS[self.kind][detour](Detour(self, builder, step))

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Derives what is seen from one update of a fresh cache without a window.

        A window of 3 sees the last 3 tokens that are left, one with `keep` 1 the first
        and the last 2, a chunk of 4 those from the last multiple of 4 on. A state has
        read what full attention sees, so these two are compared with each other.
        """
        tokens, config = list(self.get(step.op["cache"]).tokens), self.config
        tokens += step.tags
        shows = step.name in ("update", "state", "view", "size")
        if not shows or not 0 < len(tokens) <= MAX_LENGTH:
            return None
        plain = "state" if self.kind == "kv" and not config["chunk"] else "kv"
        changes: dict[str, Any] = {"window": None, "keep": 0, "chunk": None}
        if plain == "state":
            changes["value_dim"] = config["value_dim"] or 1
        builder = Builder(history, kind=plain, **changes)

        def view(answer: Answer) -> Answer:
            rows = [hide(row, config) for row in answer["visible"]]
            if step.name == "update":
                return {**answer, "visible": rows[-len(step.tags) :]}
            row = answer["visible"][-1] if config["chunk"] else rows[-1]
            return {"tags": row, "size": len(row)}

        builder.claim(step, add_update(builder, "a", tokens), view=view)
        return builder.build(
            f"one update of a {plain} cache with the tokens that are left"
        )


def add_update(builder: Builder, cache: str, tags: Sequence[int]) -> int:
    """Adds an update with tokens that stand for these; returns its number."""
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)


def hide(row: Sequence[int], config: Config) -> Sequence[int]:
    """Returns the tokens that a query sees; `row`: all tokens up to and with its own."""
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


class Detour:
    """Leads the cache of a step away and back.

    The snapshots that it needs are called r0, r1, r2.
    """

    def __init__(self, state: LayerShadow, builder: Builder, step: Step) -> None:
        self.builder, self.step, self.state = builder, step, state
        self.cache = str(step.op["cache"])
        self.tokens = state.get(self.cache).tokens
        self.length = len(self.tokens)

    def add(self, name: str, **fields: Any) -> int:
        """Adds an operation on the cache; returns its number."""
        return self.builder.add({"op": name, "cache": self.cache, **fields})

    def promise(self, other: int, **answer: Any) -> None:
        self.builder.promise(self.step, other, answer)

    def snapshot(self, begin: int, into: str) -> None:
        self.add("snapshot", **{"from": begin}, into=into)

    def restore(self, name: str, target: int) -> None:
        back = self.add("restore", snapshot=name, target=target)
        self.promise(back, ok=True, offset=target)

    def close(self, *names: str) -> None:
        for name in names:
            self.add("close", snapshot=name)

    def bring_back(self) -> None:
        self.snapshot(self.length // 2, "r0")
        self.add("update", length=2)
        self.restore("r0", self.length)
        self.close("r0")

    def split(self) -> None:
        self.snapshot(0, "r0")
        sides = {"parent": "r1", "child": "r0"}
        self.add("split", snapshot="r0", at=self.length // 2, **sides)
        self.add("update", length=2)
        self.restore("r0", self.length)
        self.close("r0", "r1")

    def join(self) -> None:
        """Merges a snapshot of all tokens with one of the next token. Restored, they give
        each token once, although the cache got another token in between."""
        length, first = self.length, self.tokens[0]
        self.snapshot(0, "r0")
        add_update(self.builder, self.cache, [first])
        self.snapshot(length, "r1")
        self.add("merge", parent="r0", child="r1", into="r0")
        self.add("update", length=1)
        self.restore("r0", length + 1)
        self.promise(self.add("state"), tags=[*self.tokens, first])
        self.add("trim", count=1)
        self.close("r0")

    def capture(self) -> None:
        """Makes two captures in one update. They stay as they were when other tokens pass
        the same offsets."""
        length, first = self.length, self.tokens[0]
        self.snapshot(0, "r0")
        self.add("prepare", offsets=[length + 1, length + 2])
        add_update(self.builder, self.cache, [first, first])
        self.restore("r0", length)
        self.add("update", length=2)
        ranges = [[length, length + 1], [length + 1, length + 2]]
        self.promise(self.add("take", into=["r1", "r2"]), ranges=ranges)
        self.restore("r1", length + 1)
        if self.state.kind == "kv":
            self.promise(self.add("state"), tags=[*self.tokens, first])
        self.restore("r0", length)
        self.close("r0", "r1", "r2")

    def go_too_far(self) -> None:
        """Trims a full window, which works, and again one token later, which does not: a
        token has slid out. A state can never be trimmed."""
        window = self.state.config["window"]
        self.snapshot(0, "r0")
        if window:
            self.add("free")
            self.add("update", length=window)
            self.promise(self.add("trim", count=1), trimmed=1)
            self.add("update", length=2)
        self.promise(self.add("trim", count=1), trimmed=0)
        self.restore("r0", self.length)
        self.close("r0")


BACK = {"snapshot of the later half, other tokens, restore": Detour.bring_back}
SPLIT = {"snapshot, its later half split off, other tokens, restore": Detour.split}
JOINED = {"snapshots of all and of one more token, merged, restore": Detour.join}
CAPTURE = {"two captures, other tokens, restore of what was captured": Detour.capture}
REFUSED = {"tokens that slid out, or were read, cannot be taken back": Detour.go_too_far}
DETOURS: Mapping[str, Mapping[str, Callable[[Detour], None]]] = {
    "kv": {**BACK, **SPLIT, **JOINED, **CAPTURE},
    "rotating": {**BACK, **CAPTURE, **REFUSED},
    "state": {**BACK, **REFUSED},
}
FAMILIES = dict.fromkeys(DETOURS, Family(LayerShadow))
