"""The operations on snapshots and captures, one class each: what is legal, how to draw
one, what the reference expects, what the backend answers, and how to say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.backends.broken import Broken
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.layer.operation import CACHE, USAGE, LayerOperation
from lockstep.harness.contracts.layer.system import LayerSubject
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import INTEGER, NAME, POSITION, Schema
from lockstep.harness.core.printable import clean

SNAPSHOT_OR_NONE: Schema = {**NAME, "type": ["string", "null"]}
SNAPSHOTS = ("s0", "s1", "s2", "s3", "s4")
MAX_SNAPSHOTS = 64


class TakeSnapshot(LayerOperation):
    name = "snapshot"
    fields: ClassVar[Mapping[str, Schema]] = {"from": INTEGER, "into": NAME, **CACHE}

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return why_full(model, 1)

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        begins = [0, 0, offset // 2, offset - 1, offset - 2, offset, offset + 1, -1]
        ends = [snapshot.end for snapshot in model.snapshots.values()]
        begins += [*ends, *(end for end in ends if end < offset)]
        return {"from": source.pick(begins), "into": source.pick(SNAPSHOTS)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        snapshot = model.get(op.get("cache", "a")).snapshot(op["from"])
        return {"range": model.put_snapshot(op["into"], snapshot)}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        return {"range": subject.put_snapshot(op["into"], cache.snapshot(op["from"]))}

    def describe_here(self, op: Op) -> str:
        return f"snapshot {op['into']} from {op['from']}"


class Restore(LayerOperation):
    name = "restore"
    fields: ClassVar[Mapping[str, Schema]] = {
        "snapshot": SNAPSHOT_OR_NONE,
        "target": INTEGER,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return model.why_not_snapshot(op["snapshot"])

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        names = list(model.snapshots)  # the latest last, such as the parts of a split
        name = source.pick([*names, *names[-2:], *names[-2:], None])
        if name is None:
            targets = [offset, offset - 1, offset - 2, offset // 2, 0, offset + 1, -1]
        else:
            snapshot = model.snapshots[name]
            begin, end = snapshot.begin, snapshot.end
            middle = (begin + end) // 2
            targets = [end, end, end, end - 1, begin, begin - 1, begin + 1, end + 1, 0]
            targets += [middle, end]
        return {"snapshot": name, "target": source.pick(targets)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name, cache = op.get("cache", "a"), model.get(op.get("cache", "a"))
        snapshot = op["snapshot"] and model.snapshots[op["snapshot"]]
        before = cache.offset
        restored = cache.restore(snapshot or None, op["target"])
        if restored and snapshot:
            model.past[name].add("restore")
        if not restored or cache.offset < before:
            model.past[name].add("rewind" if restored else "refusal")
        return {"ok": restored, "offset": cache.offset}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        snapshot = subject.find_snapshot(op["snapshot"])
        return {"ok": cache.restore(snapshot, op["target"]), "offset": cache.offset}

    def describe_here(self, op: Op) -> str:
        source = "its own tokens" if op["snapshot"] is None else op["snapshot"]
        return f"restore offset {op['target']} from {source}"


class Split(LayerOperation):
    name = "split"
    fields: ClassVar[Mapping[str, Schema]] = {
        "snapshot": NAME,
        "at": POSITION,
        "parent": NAME,
        "child": NAME,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        if op["parent"] == op["child"]:
            return "parent and child need two names"
        return model.why_not_snapshot(op["snapshot"]) or why_full(model, 2)

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        if not model.snapshots:
            return None
        name = source.pick(list(model.snapshots))
        begin, end = model.snapshots[name].begin, model.snapshots[name].end
        cuts = [(begin + end) // 2, begin + 1, end - 1, begin, end, end + 1]
        parent = source.pick(SNAPSHOTS)
        child = source.pick([other for other in SNAPSHOTS if other != parent])
        return {
            "snapshot": name,
            "at": max(0, source.pick(cuts)),
            "parent": parent,
            "child": child,
        }

    def expect(self, op: Op, model: LayerModel) -> Answer:
        snapshot = model.snapshots.pop(op["snapshot"])
        parent, child = model.get(op.get("cache", "a")).split(snapshot, op["at"])
        return {
            "parent": model.put_snapshot(op["parent"], parent),
            "child": model.put_snapshot(op["child"], child),
        }

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        snapshot = subject.consume(op["snapshot"])
        cache = subject.get(op.get("cache", "a"))
        parent, child = expect_list(cache.split(snapshot, op["at"]), "split", 2)
        return {
            "parent": subject.put_snapshot(op["parent"], parent),
            "child": subject.put_snapshot(op["child"], child),
        }

    def describe_here(self, op: Op) -> str:
        return f"split {op['snapshot']} at {op['at']} into {op['parent']}, {op['child']}"


class Merge(LayerOperation):
    name = "merge"
    fields: ClassVar[Mapping[str, Schema]] = {
        "parent": SNAPSHOT_OR_NONE,
        "child": SNAPSHOT_OR_NONE,
        "into": NAME,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        parent, child = op["parent"], op["child"]
        if parent == child and parent is not None:
            return "parent and child are one snapshot"
        return model.why_not_snapshot(parent) or model.why_not_snapshot(child)

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        pairs: list[tuple[str | None, str | None]] = [
            (parent, child)
            for parent, before in model.snapshots.items()
            for child, after in model.snapshots.items()
            if parent != child and before.end == after.begin
        ]
        names = list(model.snapshots)
        # Only of a kv cache the two have to be adjacent, or it is a usage error.
        others = 16 if pairs or model.config["kind"] == "kv" else 1
        if len(names) > 1 and not source.below(others):
            first = source.below(len(names))
            pairs = [(names[first], names[first - 1])]  # adjacent or not
        elif names and not source.below(16):
            pairs = [(names[0], None), (None, names[0])]
        if not pairs:
            return None
        parent, child = source.pick(pairs)
        return {"parent": parent, "child": child, "into": source.pick(SNAPSHOTS)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        names = [name for name in (op["parent"], op["child"]) if name]
        parent, child = (model.snapshots.get(op[side]) for side in ("parent", "child"))
        try:
            merged = model.get(op.get("cache", "a")).merge(parent, child)
        except ValueError:
            return dict(USAGE)
        for name in names:
            del model.snapshots[name]
        return {"range": model.put_snapshot(op["into"], merged)}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        sides = [subject.find_snapshot(op[side]) for side in ("parent", "child")]
        try:
            merged = subject.get(op.get("cache", "a")).merge(*sides)
        except ValueError:
            return dict(USAGE)
        subject.consume(op["parent"])
        subject.consume(op["child"])
        return {"range": subject.put_snapshot(op["into"], merged)}

    def describe_here(self, op: Op) -> str:
        parent, child = op["parent"] or "nothing", op["child"] or "nothing"
        return f"merge {parent} and {child} into {op['into']}"


class Close(LayerOperation):
    name = "close"
    fields: ClassVar[Mapping[str, Schema]] = {"snapshot": NAME, **CACHE}

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return model.why_not_snapshot(op["snapshot"])

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        if not model.snapshots:
            return None
        return {"snapshot": source.pick(list(model.snapshots))}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        del model.snapshots[op["snapshot"]]
        return {}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        subject.get(op.get("cache", "a")).close(subject.consume(op["snapshot"]))
        return {}

    def describe_here(self, op: Op) -> str:
        return f"close {op['snapshot']}"


class Prepare(LayerOperation):
    name = "prepare"
    fields: ClassVar[Mapping[str, Schema]] = {
        "offsets": {"type": "array", "items": POSITION, "maxItems": 64},
        **CACHE,
    }

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        if model.get(cache).captures.scheduled and source.below(2):
            return None
        if not source.below(16):
            wrong = [max(0, offset - 1), offset + source.below(3)]
            return {"offsets": source.pick((wrong, wrong[::-1]))}
        ends = [snapshot.end for snapshot in model.snapshots.values()]
        near = [offset + more for more in range(6)]
        near += [end + 1 for end in ends if end >= offset]  # to be jumped past, or met
        ahead = {source.pick(near) for _ in range(source.between(1, 3))}
        return {"offsets": sorted(ahead)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        try:
            model.get(op.get("cache", "a")).prepare(op["offsets"])
        except ValueError:
            return dict(USAGE)
        return {}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        offsets = list(op["offsets"])
        try:
            subject.get(op.get("cache", "a")).prepare(offsets)
        except ValueError:
            return dict(USAGE)
        finally:
            offsets.clear()  # the caller's list: a cache must not rely on it
        return {}

    def describe_here(self, op: Op) -> str:
        offsets = ", ".join(map(str, op["offsets"]))
        return f"prepare captures at {offsets or 'no offset'}"


class Take(LayerOperation):
    name = "take"
    fields: ClassVar[Mapping[str, Schema]] = {
        "into": {"type": "array", "items": NAME, "maxItems": 64},
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        if len(set(op["into"])) < len(op["into"]):
            return "two captures need two names"
        return why_full(model, len(op["into"]))

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        scheduled = model.get(cache).captures.scheduled
        if not scheduled and source.below(8):
            return None
        start = source.below(len(SNAPSHOTS))
        names = [*SNAPSHOTS[start:], *SNAPSHOTS[:start]]
        return {"into": names[: len(scheduled)]}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        captures = model.get(op.get("cache", "a")).take()
        names = pad_names(op["into"], len(captures))
        pairs = zip(names, captures, strict=True)
        return {"ranges": [model.put_snapshot(name, taken) for name, taken in pairs]}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        captures = expect_list(subject.get(op.get("cache", "a")).take(), "take")
        names = pad_names(op["into"], len(captures))
        pairs = zip(names, captures, strict=True)
        return {"ranges": [subject.put_snapshot(name, taken) for name, taken in pairs]}

    def describe_here(self, op: Op) -> str:
        return f"take the captures as {', '.join(op['into']) or 'nothing'}"


def pad_names(names: list[str], length: int) -> list[str | None]:
    """As many names as captures: those beyond the given ones get none, and are closed."""
    return [*names[:length], *[None] * (length - len(names))]


def expect_list(answer: Any, name: str, length: int | None = None) -> list[Any]:
    """A list or tuple that a backend returned, or Broken."""
    if not isinstance(answer, list | tuple) or length not in (None, len(answer)):
        wanted = "a list" if length is None else f"{length} snapshots"
        raise Broken("malformed", f"{name} returned {clean(repr(answer))}, not {wanted}")
    return list(answer)


def why_full(model: LayerModel, more: int) -> str | None:
    full = len(model.snapshots) + more > MAX_SNAPSHOTS
    return f"there are {len(model.snapshots)} snapshots already" if full else None
