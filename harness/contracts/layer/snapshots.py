"""The operations on snapshots and captures."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, ClassVar

from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.layer.operation import (
    CACHE,
    SNAPSHOT,
    Fields,
    LayerOperation,
    Side,
)
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.system import ask
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.document import INTEGER, NAME, NAMES, POSITION, Schema
from lockstep.harness.core.errors import Broken, clean

SNAPSHOT_OR_NONE: Schema = {**SNAPSHOT, "type": ["string", "null"]}
SNAPSHOTS = ("s0", "s1", "s2", "s3", "s4")
MAX_SNAPSHOTS = 64


class TakeSnapshot(LayerOperation):
    name, weight = "snapshot", 4
    fields: ClassVar[Mapping[str, Schema]] = {"from": INTEGER, "into": SNAPSHOT, **CACHE}

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return why_full(model, 1)

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset, ends = model.get(cache).offset, model.list_ends()
        begins = [0, 0, offset // 2, offset - 1, offset - 2, offset, offset + 1, -1]
        begins += [*ends, *(end for end in ends if end < offset)]
        return {"from": source.pick(begins), "into": source.pick(SNAPSHOTS)}

    def run(self, op: Op, side: Side) -> Answer:
        snapshot = side.get(op["cache"]).snapshot(op["from"])
        return {"range": side.put_snapshot(op["into"], snapshot)}

    def describe_here(self, op: Op) -> str:
        return f"snapshot {op['into']} from {op['from']}"


class Restore(LayerOperation):
    name, weight = "restore", 5
    writes = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "snapshot": SNAPSHOT_OR_NONE,
        "target": INTEGER,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return model.why_not_snapshot(op["snapshot"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        names = list(model.snapshots)  # the latest last, such as the parts of a split
        name = source.pick([*names, *names[-2:], *names[-2:], None])
        if name is None:
            targets = [offset, offset - 1, offset - 2, offset // 2, 0, offset + 1, -1]
        else:
            begin, end = model.snapshots[name].begin, model.snapshots[name].end
            targets = [end, end, end, end - 1, begin, begin - 1, begin + 1, end + 1, 0]
            targets += [(begin + end) // 2, end]
        return {"snapshot": name, "target": source.pick(targets)}

    def run(self, op: Op, side: Side) -> Answer:
        cache, snapshot = side.get(op["cache"]), side.find_snapshot(op["snapshot"])
        return {"ok": cache.restore(snapshot, op["target"]), "offset": cache.offset}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        before, past = model.get(op["cache"]).offset, model.past[op["cache"]]
        answer = self.run(op, model)
        if answer["ok"] and op["snapshot"]:
            past.add("restore")
        if not answer["ok"] or answer["offset"] < before:
            past.add("rewind" if answer["ok"] else "refusal")
        return answer

    def describe_here(self, op: Op) -> str:
        source = "its own tokens" if op["snapshot"] is None else op["snapshot"]
        return f"restore offset {op['target']} from {source}"


class Split(LayerOperation):
    name, weight = "split", 2
    fields: ClassVar[Mapping[str, Schema]] = {
        "snapshot": SNAPSHOT,
        "at": POSITION,
        "parent": SNAPSHOT,
        "child": SNAPSHOT,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        if op["parent"] == op["child"]:
            return "parent and child need two names"
        return model.why_not_snapshot(op["snapshot"]) or why_full(model, 2)

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        if not model.snapshots:
            return None
        name = source.pick(list(model.snapshots))
        begin, end = model.snapshots[name].begin, model.snapshots[name].end
        cuts = [(begin + end) // 2, begin + 1, end - 1, begin, end, end + 1]
        parent = source.pick(SNAPSHOTS)
        child = source.pick([other for other in SNAPSHOTS if other != parent])
        at = max(0, source.pick(cuts))
        return {"snapshot": name, "at": at, "parent": parent, "child": child}

    def run(self, op: Op, side: Side) -> Answer:
        snapshot, cache = side.consume(op["snapshot"]), side.get(op["cache"])
        parts = expect_list(cache.split(snapshot, op["at"]), "split", 2)
        sides = zip(("parent", "child"), parts, strict=True)
        return {name: side.put_snapshot(op[name], part) for name, part in sides}

    def describe_here(self, op: Op) -> str:
        return f"split {op['snapshot']} at {op['at']} into {op['parent']}, {op['child']}"


class Merge(LayerOperation):
    name, weight = "merge", 3
    fields: ClassVar[Mapping[str, Schema]] = {
        "parent": SNAPSHOT_OR_NONE,
        "child": SNAPSHOT_OR_NONE,
        "into": SNAPSHOT,
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        parent, child = op["parent"], op["child"]
        if parent == child and parent is not None:
            return "parent and child are one snapshot"
        return model.why_not_snapshot(parent) or model.why_not_snapshot(child)

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
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

    def run(self, op: Op, side: Side) -> Answer:
        cache = side.get(op["cache"])
        parent, child = (side.find_snapshot(op[name]) for name in ("parent", "child"))
        answer: Answer = ask(lambda: {"merged": cache.merge(parent, child)})
        if "error" in answer:
            return answer
        side.consume(op["parent"])
        side.consume(op["child"])
        return {"range": side.put_snapshot(op["into"], answer["merged"])}

    def describe_here(self, op: Op) -> str:
        parent, child = op["parent"] or "nothing", op["child"] or "nothing"
        return f"merge {parent} and {child} into {op['into']}"


class Close(LayerOperation):
    name = "close"
    fields: ClassVar[Mapping[str, Schema]] = {"snapshot": SNAPSHOT, **CACHE}

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return model.why_not_snapshot(op["snapshot"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        names = list(model.snapshots)
        return {"snapshot": source.pick(names)} if names else None

    def expect(self, op: Op, model: LayerModel) -> Answer:
        model.consume(op["snapshot"])
        return {}

    def observe(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        system.get(op["cache"]).close(system.consume(op["snapshot"]))
        return {}

    def describe_here(self, op: Op) -> str:
        return f"close {op['snapshot']}"


class Prepare(LayerOperation):
    name, weight = "prepare", 2
    fields: ClassVar[Mapping[str, Schema]] = {
        "offsets": {"type": "array", "items": POSITION, "maxItems": 64},
        **CACHE,
    }

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        if model.get(cache).captures.scheduled and source.below(2):
            return None
        if not source.below(16):
            wrong = [max(0, offset - 1), offset + source.below(3)]
            return {"offsets": source.pick((wrong, wrong[::-1]))}
        near = [offset + more for more in range(6)]
        # To be jumped past, or met.
        near += [end + 1 for end in model.list_ends() if end >= offset]
        ahead = {source.pick(near) for _ in range(source.between(1, 3))}
        return {"offsets": sorted(ahead)}

    def run(self, op: Op, side: Side) -> Answer:
        cache, offsets = side.get(op["cache"]), list(op["offsets"])
        answer: Answer = ask(lambda: {"prepared": cache.prepare(offsets)})
        offsets.clear()  # the caller's list: a cache must not rely on it
        return answer if "error" in answer else {}

    def describe_here(self, op: Op) -> str:
        offsets = ", ".join(map(str, op["offsets"]))
        return f"prepare captures at {offsets or 'no offset'}"


class Take(LayerOperation):
    name, weight = "take", 2
    fields: ClassVar[Mapping[str, Schema]] = {
        "into": {"type": "array", "items": NAME, "maxItems": 64, NAMES: "snapshot"},
        **CACHE,
    }

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        if len(set(op["into"])) < len(op["into"]):
            return "two captures need two names"
        return why_full(model, len(op["into"]))

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        scheduled = model.get(cache).captures.scheduled
        if not scheduled and source.below(8):
            return None
        start = source.below(len(SNAPSHOTS))
        names = [*SNAPSHOTS[start:], *SNAPSHOTS[:start]]
        return {"into": names[: len(scheduled)]}

    def run(self, op: Op, side: Side) -> Answer:
        """Captures beyond the names that are given get none, and are closed."""
        captures = expect_list(side.get(op["cache"]).take(), "take")
        pairs = zip_longest(op["into"][: len(captures)], captures)
        return {"ranges": [side.put_snapshot(name, taken) for name, taken in pairs]}

    def describe_here(self, op: Op) -> str:
        return f"take the captures as {', '.join(op['into']) or 'nothing'}"


def expect_list(answer: Any, name: str, length: int | None = None) -> list[Any]:
    """Returns a list or tuple that a cache answered, as a list; else raises Broken."""
    if not isinstance(answer, list | tuple) or length not in (None, len(answer)):
        wanted = "a list" if length is None else f"{length} snapshots"
        raise Broken("malformed", f"{name} returned {clean(repr(answer))}, not {wanted}")
    return list(answer)


def why_full(model: LayerModel, more: int) -> str | None:
    full = len(model.snapshots) + more > MAX_SNAPSHOTS
    return f"there are {len(model.snapshots)} snapshots already" if full else None
