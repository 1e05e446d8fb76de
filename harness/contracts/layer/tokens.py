"""The operations that write, read and take back tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lockstep.harness.contracts.layer.model import (
    REACH,
    LayerModel,
    answer_tags,
    get_rows_visible,
)
from lockstep.harness.contracts.layer.operation import (
    CACHE,
    CACHE_NAME,
    Fields,
    LayerOperation,
    Side,
    count,
    why_no_cache,
)
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.system import ask
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.document import INTEGER, LENGTH, Schema

CACHES = ("a", "b", "c")


class Update(LayerOperation):
    name, weight = "update", 20
    writes = True
    is_method = False
    fields: ClassVar[Mapping[str, Schema]] = {"length": LENGTH, **CACHE}

    def tokens(self, op: Op) -> int:
        return int(op["length"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        if offset >= model.reach:
            return None if source.below(4) else {"length": 1}
        if source.below(2):
            return {"length": 1}
        lengths = [1, 2, 3, *self.list_edges(model, cache, offset)]
        if model.reach > REACH:
            lengths += [63, 100, 255, 256, 257, 300]
        length = source.pick(lengths)
        longest = 12 if model.reach == REACH else 300
        return {"length": length if 1 <= length <= longest else 1 + length % 5}

    def list_edges(self, model: LayerModel, cache: str, offset: int) -> list[int]:
        """Lists lengths that end at a boundary, one before it, or one after."""
        config, edges = model.config, list[int]()
        if window := config["window"]:
            left = window - offset
            edges += [left, left + 1, window, window - 1, window + 1]
        step, chunk = config["step"], config["chunk"]
        edges += [step - offset % step, step - offset % step + 1]
        if chunk:
            edges += [chunk - offset % chunk, chunk - offset % chunk + 1, chunk]
        # Other tokens at an offset known from elsewhere may be mistaken for those.
        known = [*model.get(cache).captures.scheduled, *model.list_ends()]
        known += [other.offset for other in model.caches.values()]
        return edges + [at - offset for at in known if at > offset]

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name, length = op["cache"], op["length"]
        cache = model.get(name)
        begin = cache.offset
        cache.update(range(model.tag, model.tag + length))
        model.past[name].clear()
        answer: Answer = {"offset": cache.offset}
        if model.rows:
            answer["visible"] = get_rows_visible(cache, begin)
        return answer

    def observe(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        name = op["cache"]
        tags = range(model.tag, model.tag + op["length"])
        return system.update(name, tags, model.get(name).tokens)

    def verify(self, op: Op, system: LayerSystem, model: LayerModel) -> None:
        cache = model.get(op["cache"])
        tags = range(model.tag, model.tag + op["length"])
        system.verify_attention(cache.visible, tags, cache.offset)

    def describe_here(self, op: Op) -> str:
        return f"update with {count(op['length'], 'token')}"


class State(LayerOperation):
    name = "state"

    def expect(self, op: Op, model: LayerModel) -> Answer:
        return answer_tags(model.get(op["cache"]))

    def observe(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        return system.read_all(self.name, op["cache"], model.get(op["cache"]))


class View(State):
    name = "view"


class Size(LayerOperation):
    name = "size"
    kinds = ("kv", "rotating")

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return "a state has no size" if model.config["kind"] == "state" else None

    def run(self, op: Op, side: Side) -> Answer:
        return {"size": side.get(op["cache"]).size()}


class Trim(LayerOperation):
    name, weight = "trim", 3
    writes = has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {"count": INTEGER, **CACHE}

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        far = [offset, offset + 1, offset + 3, max(0, offset - 1)]
        scheduled = model.get(cache).captures.scheduled
        far += [offset + 1 - at for at in scheduled if at <= offset]
        return {"count": source.pick([1, 2, 1, 0, 3, 5, offset // 2, *far])}

    def draw_misuse(self, source: Source, model: LayerModel) -> Op:
        """A negative number of tokens."""
        cache = source.pick(sorted(model.caches))
        return {"op": self.name, "count": -1 - source.below(3), "cache": cache}

    def run(self, op: Op, side: Side) -> Answer:
        cache = side.get(op["cache"])
        answer: Answer = ask(lambda: {"trimmed": cache.trim(op["count"])})
        return answer if "error" in answer else {**answer, "offset": cache.offset}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        answer = self.run(op, model)
        if op["count"] and "error" not in answer:
            happened = "rewind" if answer["trimmed"] else "refusal"
            model.past[op["cache"]].add(happened)
        return answer

    def describe_here(self, op: Op) -> str:
        return f"trim {count(op['count'], 'token')}"


class Clone(LayerOperation):
    name = "clone"
    fields: ClassVar[Mapping[str, Schema]] = {"into": CACHE_NAME, **CACHE}

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        if op["into"] == op["cache"]:
            return "a cache cannot be cloned into itself"
        return why_no_cache(op["into"], model)

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        return {"into": source.pick([name for name in CACHES if name != cache])}

    def run(self, op: Op, side: Side) -> Answer:
        side.put_cache(op["into"], side.get(op["cache"]).clone())
        return {}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        answer, past = self.run(op, model), model.past[op["cache"]]
        past.add("clone")
        model.past[op["into"]] = set(past)
        return answer

    def describe_here(self, op: Op) -> str:
        return f"clone into cache {op['into']}"


class Free(LayerOperation):
    name = "free"
    writes = True

    def run(self, op: Op, side: Side) -> Answer:
        cache = side.get(op["cache"])
        cache.free()
        return {"offset": cache.offset}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        answer = self.run(op, model)
        model.past[op["cache"]] = {"free", "unwritten"}
        return answer
