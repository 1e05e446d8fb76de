"""Defines the operations of the layer contract, one class for each operation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, ClassVar

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.messages import (
    HELD,
    MASK,
    OFFSET,
    OFFSETS,
    PAIR,
    PART,
    STATES,
    Positive,
    Snapshot,
)
from lockstep.harness.contracts.answer_schemas import (
    BOOLEAN,
    NOTHING,
    NOTHING_OR_USAGE,
    NUMBER,
    RANGE,
    TAG_ROWS,
    TAGS,
    USAGE,
    any_of,
    list_of,
    record,
)
from lockstep.harness.contracts.answers import read_list
from lockstep.harness.contracts.layer.model import (
    LONG_REACH,
    NO_UPDATES,
    Cache,
    LayerModel,
    answer_offset,
    answer_size,
    answer_tags,
    get_rows_visible,
)
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Fields,
    Op,
    Operation,
    Source,
    format_fields,
    index,
)
from lockstep.harness.core.document import INTEGER, LENGTH, NAME, NAMES, POSITION, Schema
from lockstep.reference.state import StateCache

CACHE_NAME: Schema = {**NAME, NAMES: "cache"}
SNAPSHOT: Schema = {**NAME, NAMES: "snapshot"}
CACHE: Mapping[str, Schema] = {"cache": {**CACHE_NAME, "default": "a"}}


class CacheOperation(Operation):
    """An operation on the cache that it names.

    Attributes:
        noun: precedes the name of the cache in reports.
    """

    fields: ClassVar[Mapping[str, Schema]] = CACHE
    noun: ClassVar[str] = ""

    def draw_for(self, source: Source, model: Any, cache: str) -> Op | None:
        fields = self.draw_fields(source, model, cache)
        return None if fields is None else {"op": self.name, **fields, "cache": cache}

    def draw_fields(self, source: Source, model: Any, cache: str) -> Fields:
        """Draws all fields except the cache; None if the operation is not legal now."""
        return {}

    def draw_misuse_of(self, source: Source, model: Any, cache: str) -> Op | None:
        wrong = self.draw_wrong(source, model, cache)
        return None if wrong is None else {"op": self.name, **wrong, "cache": cache}

    def draw_wrong(self, source: Source, model: Any, cache: str) -> Fields:
        """Draws fields that the backend must refuse for a cache, or None."""
        return None

    def describe(self, op: Op) -> str:
        name = op.get("cache", "a")
        return self.describe_here(op) + ("" if name == "a" else f" in {self.noun}{name}")

    def describe_here(self, op: Op) -> str:
        """Formats the operation without the name of its cache."""
        fields = [name for name in self.fields if name != "cache"]
        listed = f"{self.name} {format_fields(op, fields)}".rstrip()
        return self.text.format_map(op) or listed


class LayerOperation(CacheOperation):
    """An operation on a cache of the layer contract."""

    noun = "cache "

    def draw(self, source: Source, model: LayerModel) -> Op | None:
        return self.draw_for(source, model, source.pick(("a", *model.caches)))

    def draw_misuse(self, source: Source, model: LayerModel) -> Op | None:
        return self.draw_misuse_of(source, model, source.pick(sorted(model.caches)))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# --- tokens: write, read and take back --------------------------------------------------


CACHES = ("a", "b", "c")


FORMS = ("batch", "heads", "key_dim", "value_dim", "length", "dtype", "rank")
"""The properties of arrays that can be invalid: a size, the dtype, the length (K and V
differ), or the number of axes. For a state, "length" means a length of 0."""


LARGE = 160
"""An update may be large if the program has at most LARGE tokens: the time of an update
grows with its length times the number of all tokens."""


class Update(LayerOperation):
    """Appends the K and V of `length` tokens. If `wrong` is set, passes invalid arrays,
    which the cache must refuse. `wrong` names the invalid property: a batch, heads,
    key_dim, value_dim or dtype that differs from earlier arrays; "length": K and V of
    different lengths (for a state, no tokens); "rank": arrays without their first axis,
    or with one more before it if `length` is even; "capture": a state that is written
    past a scheduled capture.

    Answer: `offset`: the offset after the update; `visible`: for each new token, the
    tags that it sees. For a state, the tags that the state has read, in order. For a
    pooled cache, the last token of each entry that it sees.
    """

    name, weight = "update", 20
    effect = Effect.ADDS
    messages = {
        "update": ({"rows": Positive, **PAIR, **PART}, {**OFFSET, **PAIR, **MASK})
    }
    answer = any_of(record(offset=NUMBER, visible=TAG_ROWS), USAGE)
    writes = has_misuse = True
    is_method = False
    fields = {
        "length": LENGTH,
        **CACHE,
        "wrong": {"enum": [None, *FORMS, "capture"], "default": None},
    }

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        wrong, cache = op.get("wrong"), model.get(op["cache"])
        if wrong is None:
            return None
        if cache.offset == 0:
            return "an empty cache takes arrays of any form"
        if wrong == "dtype" and model.config["dtype"] == "float32":
            return "there may be no other dtype"
        if wrong == "capture" and not has_capture_within(cache, op["length"]):
            return "no capture of a state is scheduled within the tokens"
        return None

    def draw_wrong(self, source: Source, model: LayerModel, cache: str) -> Fields:
        length = source.between(1, 4)
        return {"length": length, "wrong": source.pick((*FORMS, "capture"))}

    def count_tags(self, op: Op) -> int:
        return int(op["length"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        if offset >= model.reach:
            return None if source.below(4) else {"length": 1}
        if source.below(2):
            return {"length": 1}
        if model.config["window"] and model.snapshots and not source.below(16):
            # Overwrites the whole ring; a snapshot may only refer to a part of it.
            return {"length": source.pick((13, 16, 23, 32))}
        lengths = [1, 2, 3, *self.list_edges(model, cache, offset)]
        longest = 12
        if model.reach == LONG_REACH and model.tag < LARGE:
            lengths += [63, 100, 255, 256, 257, 300, 512, 1025, 2048]
            longest = 2048
        length = source.pick(lengths)
        return {"length": length if 1 <= length <= longest else 1 + length % 5}

    def list_edges(self, model: LayerModel, cache: str, offset: int) -> list[int]:
        """Lists update lengths that end at, just before or just after a boundary."""
        config, edges = model.config, list[int]()
        if window := config["window"]:
            room = window - offset
            edges += [room, room + 1, window, window - 1, window + 1]
        step, chunk = config["step"], config["chunk"]
        edges += [step - offset % step, step - offset % step + 1]
        if pool := config["pool"]:
            closes = pool - offset % pool
            edges += [closes - 1, closes, closes + 1, closes + pool, closes + pool + 1]
        if chunk:
            edges += [chunk - offset % chunk, chunk - offset % chunk + 1, chunk]
        # A cache may confuse new tokens with earlier tokens at the same offset.
        offsets_known = [*model.get(cache).captures.scheduled, *model.list_ends()]
        offsets_known += [target.offset for target in model.caches.values()]
        return edges + [at - offset for at in offsets_known if at > offset]

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        name, length = op["cache"], op["length"]
        cache = model.get(name)
        if op.get("wrong"):
            return {"error": "usage"}
        begin = cache.offset
        cache.update(range(model.tag, model.tag + length))
        model.past[name].clear()
        model.note_update(name, begin, length)

        def show(cache: Cache) -> Answer:
            shown = {"visible": get_rows_visible(cache, begin)} if model.rows else {}
            return {"offset": cache.offset, **shown}

        return model.tell(cache, show)

    def run_backend(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        name = op["cache"]
        if op.get("wrong"):
            return system.update_wrongly(name, op["wrong"], op["length"])
        tags = range(model.tag, model.tag + op["length"])
        return system.update(name, tags, model.get(name))

    def verify(self, op: Op, system: LayerSystem, model: LayerModel) -> None:
        if op.get("wrong"):
            return
        cache = model.get(op["cache"])
        tags = range(model.tag, model.tag + op["length"])
        system.verify_update(cache, tags)

    def describe_here(self, op: Op) -> str:
        wrong = f" of another {op['wrong']}" if op.get("wrong") else ""
        return f"update with {count(op['length'], 'token')}{wrong}"


def has_capture_within(cache: Cache, length: int) -> bool:
    """Tells whether a state must make a capture before the last of the new tokens."""
    ahead = range(cache.offset + 1, cache.offset + length)
    scheduled = cache.captures.scheduled
    return type(cache) is StateCache and any(at in ahead for at in scheduled)


class State(LayerOperation):
    """Reads the whole content.

    Answer: `tags`: the tags of all tokens, sorted; for a rotating cache, of the tokens in
    the window; for a pooled cache, of the last token of each entry.
    """

    name, weight = "state", 2
    effect = Effect.READS
    messages = {"state": (PART, HELD), "state.states": (PART, STATES)}
    answer = record(tags=TAGS)

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        return model.tell(model.get(op["cache"]), answer_tags)

    def run_backend(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        return system.read_all(self.name, op["cache"], model.get(op["cache"]))


class View(State):
    """Reads the same content as `state`, and must not change the cache.

    Answer: `tags`, as in the answer of `state`.
    """

    name = "view"
    messages = {"view": ({}, HELD), "view.states": ({}, STATES)}


class Size(LayerOperation):
    """Counts the tokens in the cache, or the entries of a pooled cache.

    Answer: `size`: the number of tokens.
    """

    name = "size"
    effect = Effect.READS
    messages = {"size": (PART, {"size": int})}
    answer = record(size=NUMBER)
    kinds = ("kv", "rotating", "pooled")

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        return "a state has no size" if model.config["kind"] == "state" else None

    def run(self, op: Op, side: Any) -> Answer:
        answer: Answer = side.tell(side.get(op["cache"]), answer_size)
        return answer


class Trim(LayerOperation):
    """Removes the last `count` tokens.

    Answer: `trimmed`: the number of removed tokens; 0 if refused (by a rotating cache
    that has dropped tokens, by a state, and by a pooled cache that would open a window
    whose tokens it no longer has). `offset`: the offset after the trim.
    """

    name, weight = "trim", 3
    effect = Effect.REMOVES
    messages = {"trim.list": ({"count": int}, {"trimmed": int, **OFFSETS})}
    answer = any_of(record(trimmed=NUMBER, offset=NUMBER), USAGE)
    writes = has_misuse = True
    fields = {"count": INTEGER, **CACHE}

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        counts = [offset, offset + 1, offset + 3, max(0, offset - 1)]
        scheduled = model.get(cache).captures.scheduled
        counts += [offset + 1 - at for at in scheduled if at <= offset]
        if pool := model.config["pool"]:
            # The start of the open window, and the last token of the window before.
            counts += [offset % pool + delta for delta in (0, 1, 1, pool, pool + 1)]
        return {"count": source.pick([1, 2, 1, 0, 3, 5, offset // 2, *counts])}

    def draw_wrong(self, source: Source, model: LayerModel, cache: str) -> Fields:
        return {"count": -1 - source.below(3)}

    def run(self, op: Op, side: Any) -> Answer:
        cache = side.get(op["cache"])
        answer: Answer = side.ask(lambda: cache.trim(op["count"]))
        if "error" in answer:
            return answer
        return {"trimmed": answer.get("result"), **side.tell(cache, answer_offset)}

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        name, offset = op["cache"], model.get(op["cache"]).offset
        answer = self.run(op, model)
        model.note_trim(name)
        if op["count"] and "error" not in answer:
            if answer["trimmed"]:
                model.note_rewind(name, offset)
            else:
                model.past[name].add("refusal")
        return answer

    def describe_here(self, op: Op) -> str:
        return f"trim {count(op['count'], 'token')}"


class Clone(LayerOperation):
    """Makes an independent copy, as cache `into`."""

    name = "clone"
    effect = Effect.MOVES
    messages = {"clone": ({}, messages.CACHE)}
    answer = NOTHING
    text = "clone into cache {into}"
    fields = {"into": CACHE_NAME, **CACHE}

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        same = op["into"] == op["cache"]
        return "a cache cannot be cloned into itself" if same else None

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        return {"into": source.pick([name for name in CACHES if name != cache])}

    def run(self, op: Op, side: Any) -> Answer:
        side.put_cache(op["into"], side.get(op["cache"]).clone())
        return {}

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        answer, past = self.run(op, model), model.past[op["cache"]]
        past.add("clone")
        model.past[op["into"]] = set(past)
        model.updates[op["into"]] = model.updates[op["cache"]]
        return answer


class Free(LayerOperation):
    """Empties the cache.

    Answer: `offset`.
    """

    name = "free"
    effect = Effect.REMOVES
    messages = {"free.list": ({}, OFFSETS)}
    answer = record(offset=NUMBER)
    writes = True

    def run(self, op: Op, side: Any) -> Answer:
        cache = side.get(op["cache"])
        cache.free()
        answer: Answer = side.tell(cache, answer_offset)
        return answer

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        answer = self.run(op, model)
        model.past[op["cache"]] = {"free", "unwritten"}
        model.updates[op["cache"]] = NO_UPDATES
        return answer


# --- snapshots and captures -------------------------------------------------------------


SNAPSHOT_OR_NONE: Schema = {**SNAPSHOT, "type": ["string", "null"]}
SNAPSHOTS = ("s0", "s1", "s2", "s3", "s4")


class TakeSnapshot(LayerOperation):
    """Copies the content from position `from` to the end into a new snapshot `into`.

    Answer: `range`: [begin, end] of the snapshot, or null if there is no content.
    """

    name, weight = "snapshot", 4
    effect = Effect.MOVES
    messages = {"snapshot": ({"begin": int}, messages.SNAPSHOT)}
    answer = record(range=RANGE)
    text = "snapshot {into} from {from}"
    fields = {"from": INTEGER, "into": SNAPSHOT, **CACHE}

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset, ends = model.get(cache).offset, model.list_ends()
        begins = [0, 0, offset // 2, offset - 1, offset - 2, offset, offset + 1, -1]
        begins += [*ends, *(end for end in ends if end < offset)]
        return {"from": source.pick(begins), "into": source.pick(SNAPSHOTS)}

    def run(self, op: Op, side: Any) -> Answer:
        snapshot = side.get(op["cache"]).snapshot(op["from"])
        return {"range": side.put_snapshot(op["into"], snapshot, op["cache"])}


class Restore(LayerOperation):
    """Restores the offset `target` from a snapshot, or from the cache's tokens (null).

    Answer: `ok`: false if refused, and then nothing changes; `offset`.
    """

    name, weight = "restore", 5
    effect = Effect.REMOVES | Effect.MOVES
    answer = record(ok=BOOLEAN, offset=NUMBER)
    writes = True
    fields = {
        "snapshot": SNAPSHOT_OR_NONE,
        "target": INTEGER,
        **CACHE,
    }

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        return model.why_illegal_snapshot(op["snapshot"])

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

    def run(self, op: Op, side: Any) -> Answer:
        cache, snapshot = side.get(op["cache"]), side.find_snapshot(op["snapshot"])
        return {"ok": cache.restore(snapshot, op["target"]), "offset": cache.offset}

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        parent, past = model.get(op["cache"]).offset, model.past[op["cache"]]
        answer = self.run(op, model)
        if answer["ok"] and op["snapshot"]:
            past.add("restore")
        if not answer["ok"]:
            past.add("refusal")
        elif answer["offset"] < parent:
            model.note_rewind(op["cache"], parent)
        return answer

    def describe_here(self, op: Op) -> str:
        source = "its own tokens" if op["snapshot"] is None else op["snapshot"]
        return f"restore offset {op['target']} from {source}"


SIDES = ("parent", "child")


class Split(LayerOperation):
    """Splits a snapshot into two snapshots, and consumes it.

    Answer: The ranges of `parent` and `child`; null for a missing snapshot.
    """

    name, weight = "split", 2
    effect = Effect.MOVES
    messages = {
        "split": (
            {"snapshot": int, "at": int},
            dict.fromkeys(SIDES, Snapshot | None),
        )
    }
    answer = record(parent=RANGE, child=RANGE)
    text = "split {snapshot} at {at} into {parent}, {child}"
    fields = {
        "snapshot": SNAPSHOT,
        "at": POSITION,
        "parent": SNAPSHOT,
        "child": SNAPSHOT,
        **CACHE,
    }

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        if op["parent"] == op["child"]:
            return "parent and child need two names"
        return model.why_illegal_snapshot(op["snapshot"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        if not model.snapshots:
            return None
        name = source.pick(list(model.snapshots))
        begin, end = model.snapshots[name].begin, model.snapshots[name].end
        cuts = [(begin + end) // 2, begin + 1, end - 1, begin, end, end + 1]
        parent = source.pick(SNAPSHOTS)
        child = source.pick([target for target in SNAPSHOTS if target != parent])
        at = max(0, source.pick(cuts))
        return {"snapshot": name, "at": at, "parent": parent, "child": child}

    def run(self, op: Op, side: Any) -> Answer:
        snapshot, cache = side.find_snapshot(op["snapshot"]), side.get(op["cache"])
        side.consume(op["snapshot"])
        halves = read_list(cache.split(snapshot, op["at"]), "split", 2)
        sides = zip(SIDES, halves, strict=True)
        return {
            name: side.put_snapshot(op[name], half, op["cache"]) for name, half in sides
        }


class Merge(LayerOperation):
    """Joins two adjacent snapshots into one snapshot, and consumes both.

    Answer: `range`: [begin, end] of the new snapshot.
    """

    name, weight = "merge", 3
    effect = Effect.MOVES
    messages = {"merge": (dict.fromkeys(SIDES, int | None), messages.SNAPSHOT)}
    answer = any_of(record(range=RANGE), USAGE)
    has_misuse = True
    fields = {
        "parent": SNAPSHOT_OR_NONE,
        "child": SNAPSHOT_OR_NONE,
        "into": SNAPSHOT,
        **CACHE,
    }

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        parent, child = op["parent"], op["child"]
        if parent == child and parent is not None:
            return "parent and child are one snapshot"
        return model.why_illegal_snapshot(parent) or model.why_illegal_snapshot(child)

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        pairs: list[tuple[str | None, str | None]] = [
            (parent, child)
            for parent, earlier in model.snapshots.items()
            for child, after in model.snapshots.items()
            if parent != child and earlier.end == after.begin
        ]
        names = list(model.snapshots)
        # For a kv cache, two snapshots that are not adjacent are a usage error.
        apart = model.config["kind"] != "kv"
        if apart and len(names) > 1 and not source.below(16 if pairs else 1):
            first = source.below(len(names))
            pairs = [(names[first], names[first - 1])]
        elif names and not source.below(16):
            pairs = [(names[0], None), (None, names[0])]
        if not pairs:
            return None
        parent, child = source.pick(pairs)
        return {"parent": parent, "child": child, "into": source.pick(SNAPSHOTS)}

    def draw_misuse(self, source: Source, model: LayerModel) -> Op | None:
        """Draws two snapshots of a kv cache that are not adjacent."""
        pairs = [
            {"op": self.name, "parent": parent, "child": child}
            for parent in model.snapshots
            for child in model.snapshots
            if parent != child
        ]
        apart = [op for op in pairs if breaks_usage(op, model)]
        if not apart:
            return None
        return {**source.pick(apart), "into": source.pick(SNAPSHOTS)}

    def run(self, op: Op, side: Any) -> Answer:
        cache = side.get(op["cache"])
        parent, child = (side.find_snapshot(op[name]) for name in SIDES)
        answer: Answer = side.ask(lambda: cache.merge(parent, child))
        if "error" in answer:
            return answer
        side.consume(op["parent"])
        side.consume(op["child"])
        merged = answer.get("result")
        return {"range": side.put_snapshot(op["into"], merged, op["cache"])}

    def describe_here(self, op: Op) -> str:
        parent, child = op["parent"] or "nothing", op["child"] or "nothing"
        return f"merge {parent} and {child} into {op['into']}"


class Close(LayerOperation):
    """Closes a snapshot through the cache that made it; `cache` is ignored."""

    name = "close"
    effect = Effect.CONTROL
    answer = NOTHING
    text = "close {snapshot}"
    fields = {"snapshot": SNAPSHOT, **CACHE}

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        return model.why_illegal_snapshot(op["snapshot"])

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        names = list(model.snapshots)
        return {"snapshot": source.pick(names)} if names else None

    def run(self, op: Op, side: Any) -> Answer:
        side.close(op["snapshot"])
        return {}

    def describe(self, op: Op) -> str:
        return self.describe_here(op)


class Prepare(LayerOperation):
    """Schedules a capture at each of these offsets. A capture is made when a write begins
    at its offset or reaches it."""

    name, weight = "prepare", 3
    effect = Effect.CONTROL
    answer = NOTHING_OR_USAGE
    has_misuse = True
    fields = {
        "offsets": {"type": "array", "items": POSITION, "maxItems": 64},
        **CACHE,
    }

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        offset = model.get(cache).offset
        if model.get(cache).captures.scheduled:
            return None
        offsets_near = [offset + count_more for count_more in range(6)]
        # An update may skip these offsets, or end at them.
        offsets_near += [end + 1 for end in model.list_ends() if end >= offset]
        ahead = {source.pick(offsets_near) for _ in range(source.between(1, 3))}
        return {"offsets": sorted(ahead)}

    def draw_wrong(self, source: Source, model: LayerModel, cache: str) -> Fields:
        """Draws offsets before the cache's end, or offsets that do not ascend.

        While captures are not taken yet, every call is invalid; seven of eight draws
        then return None.
        """
        offset = model.get(cache).offset
        wrong = [[offset + 1, offset], [offset, offset]]
        wrong += [[offset - 1, offset + 2]] if offset else []
        if model.get(cache).captures.scheduled:
            if source.below(8):
                return None
            wrong += [[offset]]
        return {"offsets": source.pick(wrong)}

    def run(self, op: Op, side: Any) -> Answer:
        cache, offsets = side.get(op["cache"]), list(op["offsets"])
        answer = side.ask(lambda: cache.prepare(offsets))
        offsets.clear()  # the caller owns the list: a cache must not keep a reference
        return answer if "error" in answer else {}

    def describe_here(self, op: Op) -> str:
        offsets = ", ".join(map(str, op["offsets"]))
        return f"prepare captures at {offsets or 'no offset'}"


class Take(LayerOperation):
    """Takes the scheduled captures as snapshots with these names.

    Answer: `ranges`: one range for each scheduled offset; null for a missing capture.
    """

    name, weight = "take", 2
    effect = Effect.MOVES
    messages = {"take": ({}, {"snapshots": list[Snapshot | None]})}
    answer = record(ranges=list_of(RANGE))
    fields = {
        "into": {"type": "array", "items": NAME, "maxItems": 64, NAMES: "snapshot"},
        **CACHE,
    }

    def why_illegal(self, op: Op, model: LayerModel) -> str | None:
        repeats = len(set(op["into"])) < len(op["into"])
        return "two captures need two names" if repeats else None

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        scheduled = model.get(cache).captures.scheduled
        if not scheduled and source.below(8):
            return None
        start = source.below(len(SNAPSHOTS))
        names = [*SNAPSHOTS[start:], *SNAPSHOTS[:start]]
        return {"into": names[: len(scheduled)]}

    def run(self, op: Op, side: Any) -> Answer:
        """Takes the captures; captures without a name are closed."""
        captures = read_list(side.get(op["cache"]).take(), "take")
        pairs = zip_longest(op["into"][: len(captures)], captures)
        return {
            "ranges": [
                side.put_snapshot(name, taken, op["cache"]) for name, taken in pairs
            ]
        }

    def describe_here(self, op: Op) -> str:
        return f"take the captures as {', '.join(op['into']) or 'nothing'}"


def breaks_usage(op: Op, model: LayerModel) -> bool:
    """Tells whether a `merge` or a `prepare` is an invalid call."""
    if op["op"] == "prepare":
        cache = model.get(op["cache"])
        return cache.captures.why_not(op["offsets"], cache.offset) is not None
    if op["op"] == "merge" and model.config["kind"] == "kv":
        parent, child = (model.snapshots.get(op[side]) for side in SIDES)
        return parent is not None and child is not None and parent.end != child.begin
    return False


# --- all of them, by name ---------------------------------------------------------------


OPERATIONS = index(
    Update(),
    State(),
    View(),
    Size(),
    Trim(),
    Clone(),
    Free(),
    TakeSnapshot(),
    Restore(),
    Split(),
    Merge(),
    Close(),
    Prepare(),
    Take(),
)
