"""The operations that write, read and take back tokens, one class each: what is legal,
how to draw one, what the reference expects, what the backend answers, how to say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts.layer.model import (
    REACH,
    LayerModel,
    answer_tags,
    get_rows_visible,
)
from lockstep.harness.contracts.layer.operation import CACHE, USAGE, LayerOperation, count
from lockstep.harness.contracts.layer.system import LayerSubject
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import INTEGER, LENGTH, NAME, Schema
from lockstep.reference.state import StateCache

CACHES = ("a", "b", "c")


class Update(LayerOperation):
    name = "update"
    fields: ClassVar[Mapping[str, Schema]] = {"length": LENGTH, **CACHE}

    def tokens(self, op: Op) -> int:
        return int(op["length"])

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
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
        # Other tokens at an offset known from elsewhere may be mistaken for those.
        known = [*model.get(cache).captures.scheduled]
        known += [snapshot.end for snapshot in model.snapshots.values()]
        known += [other.offset for other in model.caches.values()]
        return edges + [at - offset for at in known if at > offset]

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
        name = op.get("cache", "a")
        tags = range(model.tag, model.tag + op["length"])
        return subject.update(name, tags, model.get(name).tokens)

    def verify(self, op: Op, subject: LayerSubject, model: LayerModel) -> None:
        cache = model.get(op.get("cache", "a"))
        tags = range(model.tag, model.tag + op["length"])
        subject.verify_attention(cache.visible, tags, cache.offset)

    def describe_here(self, op: Op) -> str:
        return f"update with {count(op['length'], 'token')}"


class State(LayerOperation):
    name = "state"

    def expect(self, op: Op, model: LayerModel) -> Answer:
        return answer_tags(model.get(op.get("cache", "a")))

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        return subject.read_all(self.name, name, model.get(name))


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
    fields: ClassVar[Mapping[str, Schema]] = {"count": INTEGER, **CACHE}

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        offset = model.get(cache).offset
        far = [offset, offset + 1, offset + 3, max(0, offset - 1)]
        scheduled = model.get(cache).captures.scheduled
        far += [offset + 1 - at for at in scheduled if at <= offset]
        return {"count": source.pick([1, 2, 1, 0, 3, 5, offset // 2, *far])}

    def expect(self, op: Op, model: LayerModel) -> Answer:
        name = op.get("cache", "a")
        try:
            trimmed = model.get(name).trim(op["count"])
        except ValueError:
            return dict(USAGE)
        if op["count"]:
            model.past[name].add("rewind" if trimmed else "refusal")
        return {"trimmed": trimmed, "offset": model.get(name).offset}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        try:
            trimmed = cache.trim(op["count"])
        except ValueError:
            return dict(USAGE)
        return {"trimmed": trimmed, "offset": cache.offset}

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
        model.past[name].add("clone")
        model.past[op["into"]] = set(model.past[name])
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
        model.past[name] = {"free", "unwritten"}
        return {"offset": model.get(name).offset}

    def observe(self, op: Op, subject: LayerSubject, model: LayerModel) -> Answer:
        cache = subject.get(op.get("cache", "a"))
        cache.free()
        return {"offset": cache.offset}
