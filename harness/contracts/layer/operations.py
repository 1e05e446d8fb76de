"""The operations of the layer contract, one class each: what is legal, how to draw one,
what the reference expects, what the backend answers, and how to say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from harness.contracts.base import Answer, Op, Operation, Schema, Source
from harness.contracts.fields import COUNT, INTEGER, LENGTH, NAME, POSITION
from harness.contracts.layer.model import (
    LayerModel,
    answer_tags,
    get_rows_visible,
)
from harness.contracts.layer.subject import LayerSubject
from reference.state import StateCache

CACHE: Mapping[str, Schema] = {"cache": {**NAME, "default": "a"}}
SNAPSHOT_OR_NONE: Schema = {**NAME, "type": ["string", "null"]}
MAX_CACHES, MAX_SNAPSHOTS = 16, 64
CACHES, SNAPSHOTS = ("a", "b", "c"), ("s0", "s1", "s2", "s3", "s4")
FAR = 64
"""Offsets beyond this show nothing new, but make every step slower."""


class LayerOperation(Operation):
    """What the operations share: all but a few name the cache they work on."""

    fields: ClassVar[Mapping[str, Schema]] = CACHE

    def illegal(self, op: Op, model: LayerModel) -> str | None:
        for name in (op.get("cache", "a"), self.get_new_cache(op)):
            if name not in model.caches and len(model.caches) >= MAX_CACHES:
                return f"there are {MAX_CACHES} caches already"
        return self.illegal_here(op, model)

    def get_new_cache(self, op: Op) -> str:
        return "a"

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return None

    def draw(self, source: Source, model: LayerModel) -> Op | None:
        cache = source.pick(("a", "a", *model.caches))
        op = self.draw_fields(source, model, cache)
        if op is None:
            return None
        return {"op": self.name, **op} | ({"cache": cache} if cache != "a" else {})

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        return {}

    def describe(self, op: Op) -> str:
        name = op.get("cache", "a")
        return self.describe_here(op) + ("" if name == "a" else f" in cache {name}")

    def describe_here(self, op: Op) -> str:
        return self.name


class Update(LayerOperation):
    name = "update"
    fields: ClassVar[Mapping[str, Schema]] = {"length": LENGTH, **CACHE}

    def tokens(self, op: Op) -> int:
        return int(op["length"])

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        if offset >= FAR and source.below(4):
            return None
        if source.below(2):
            return {"length": 1}
        lengths = [1, 2, 3, *self.list_edges(model, cache, offset)]
        length = source.pick(lengths)
        return {"length": length if 1 <= length <= 12 else 1 + length % 5}

    def list_edges(self, model: LayerModel, cache: str, offset: int) -> list[int]:
        """Lengths that end at a boundary, one before it, or one after."""
        config, edges = model.config, []
        if window := config["window"]:
            edges += [
                window - offset,
                window - offset + 1,
                window,
                window - 1,
                window + 1,
            ]
        step = config["step"]
        edges += [step - offset % step, step - offset % step + 1]
        if chunk := config["chunk"]:
            edges += [chunk - offset % chunk, chunk - offset % chunk + 1, chunk]
        return edges + [at - offset for at in model.get(cache).captures.scheduled]

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name, length = op.get("cache", "a"), op["length"]
        cache = model.get(name)
        begin = cache.offset
        cache.update(range(model.tag, model.tag + length))
        model.past[name].clear()
        answer: Answer = {"offset": cache.offset}
        if model.rows:
            answer["visible"] = get_rows_visible(cache, begin)
        return answer

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        return subject.update(op.get("cache", "a"), model.tag, op["length"])

    def verify(self, op: Op, subject: LayerSubject, model: LayerModel) -> None:
        cache = model.get(op.get("cache", "a"))
        subject.verify_attention(cache.visible, model.tag, cache.offset)

    def describe_here(self, op: Op) -> str:
        return f"update with {count(op['length'], 'token')}"


class State(LayerOperation):
    name = "state"

    def expect(self, op: Op, model: LayerModel) -> Answer:
        return answer_tags(model.get(op.get("cache", "a")))

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        return subject.read_all(self.name, name, model.get(name).older())


class View(State):
    name = "view"


class Size(LayerOperation):
    name = "size"

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return "a state has no size" if model.config["kind"] == "state" else None

    def expect(self, op: Op, model: LayerModel) -> Answer:
        cache = model.get(op.get("cache", "a"))
        assert not isinstance(cache, StateCache), "skipped above"
        return {"size": cache.size()}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        return {"size": subject.get(op.get("cache", "a")).size()}


class Trim(LayerOperation):
    name = "trim"
    fields: ClassVar[Mapping[str, Schema]] = {"count": COUNT, **CACHE}

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        far = [offset, offset + 1, offset + 3, max(0, offset - 1)]
        return {"count": source.pick([1, 2, 1, 0, 3, 5, offset // 2, *far])}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        trimmed = model.get(name).trim(op["count"])
        if trimmed:
            model.past[name].add("rewound")
        return {"trimmed": trimmed, "offset": model.get(name).offset}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        return {"trimmed": cache.trim(op["count"]), "offset": cache.offset}

    def describe_here(self, op: Op) -> str:
        return f"trim {count(op['count'], 'token')}"


class Clone(LayerOperation):
    name = "clone"
    fields: ClassVar[Mapping[str, Schema]] = {"into": NAME, **CACHE}

    def get_new_cache(self, op: Op) -> str:
        return str(op["into"])

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        same = op["into"] == op.get("cache", "a")
        return "a cache cannot be cloned into itself" if same else None

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        return {"into": source.pick([name for name in CACHES if name != cache])}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        model.put_cache(op["into"], model.get(name).clone())
        model.past[name].add("cloned")
        model.past[op["into"]] = model.past[name] | {"cloned"}
        return {}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        subject.put_cache(op["into"], subject.get(op.get("cache", "a")).clone())
        return {}

    def describe_here(self, op: Op) -> str:
        return f"clone into cache {op['into']}"


class Free(LayerOperation):
    name = "free"

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        model.get(name).free()
        model.past[name] = {"freed", "unwritten"}
        return {"offset": model.get(name).offset}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        cache.free()
        return {"offset": cache.offset}


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
        begins += [snapshot.end for snapshot in model.snapshots.values()]
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
        name = source.pick([*model.snapshots, *model.snapshots, None])
        if name is None:
            targets = [offset, offset - 1, offset - 2, offset // 2, 0, offset + 1, -1]
        else:
            snapshot = model.snapshots[name]
            begin, end = snapshot.begin, snapshot.end
            targets = [end, end, end, end - 1, begin, begin - 1, begin + 1, end + 1, 0]
        return {"snapshot": name, "target": source.pick(targets)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name, cache = op.get("cache", "a"), model.get(op.get("cache", "a"))
        snapshot = op["snapshot"] and model.snapshots[op["snapshot"]]
        before = cache.offset
        restored = cache.restore(snapshot or None, op["target"])
        if restored and snapshot:
            model.past[name].add("restored")
        if restored and cache.offset < before:
            model.past[name].add("rewound")
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
        parent, child = cache.split(snapshot, op["at"])
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
        unknown = model.why_not_snapshot(parent) or model.why_not_snapshot(child)
        if unknown or parent is None or child is None or model.config["kind"] != "kv":
            return unknown
        end, begin = model.snapshots[parent].end, model.snapshots[child].begin
        adjacent = end == begin
        return None if adjacent else f"{parent} ends at {end}, {child} begins at {begin}"

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        pairs: list[tuple[str | None, str | None]] = [
            (parent, child)
            for parent, before in model.snapshots.items()
            for child, after in model.snapshots.items()
            if parent != child and before.end == after.begin
        ]
        if not pairs or not source.below(8):
            one = source.pick([None, *model.snapshots])
            pairs = [(one, None), (None, one)]
        parent, child = source.pick(pairs)
        return {"parent": parent, "child": child, "into": source.pick(SNAPSHOTS)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        parent = op["parent"] and model.snapshots.pop(op["parent"])
        child = op["child"] and model.snapshots.pop(op["child"])
        merged = model.get(op.get("cache", "a")).merge(parent or None, child or None)
        return {"range": model.put_snapshot(op["into"], merged)}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        parent, child = subject.consume(op["parent"]), subject.consume(op["child"])
        merged = subject.get(op.get("cache", "a")).merge(parent, child)
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

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        cache = model.get(op.get("cache", "a"))
        return cache.captures.why_not(op["offsets"], cache.offset)

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        if model.get(cache).captures.scheduled:
            return None
        offset = model.get(cache).offset
        ahead = {offset + source.below(6) for _ in range(source.between(1, 3))}
        return {"offsets": sorted(ahead)}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        model.get(op.get("cache", "a")).prepare(op["offsets"])
        return {}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        subject.get(op.get("cache", "a")).prepare(op["offsets"])
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
        captures = subject.get(op.get("cache", "a")).take()
        names = pad_names(op["into"], len(captures))
        pairs = zip(names, captures, strict=True)
        return {"ranges": [subject.put_snapshot(name, taken) for name, taken in pairs]}

    def describe_here(self, op: Op) -> str:
        return f"take the captures as {', '.join(op['into']) or 'nothing'}"


def pad_names(names: list[str], length: int) -> list[str | None]:
    """As many names as captures: those beyond the given ones get none, and are closed."""
    return [*names[:length], *[None] * (length - len(names))]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def why_full(model: LayerModel, more: int) -> str | None:
    full = len(model.snapshots) + more > MAX_SNAPSHOTS
    return f"there are {len(model.snapshots)} snapshots already" if full else None


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Update(), State(), View(), Size(), Trim(), Clone(), Free(),
        TakeSnapshot(), Restore(), Split(), Merge(), Close(), Prepare(), Take(),
    )
}  # fmt: skip
