"""The operations between passes, one class each, and those that repeat part of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.contracts.unified.forward import ANY, Forward, answer_pass
from lockstep.harness.contracts.unified.model import (
    CAUSAL,
    IMAGE,
    Saved,
    UnifiedModel,
    list_part_configs,
    open_part,
)
from lockstep.harness.contracts.unified.system import UnifiedSubject
from lockstep.harness.core.fields import NAME, Schema, integer, optional
from lockstep.reference.encoder import EncoderCache

SMALL: Schema = integer(-4, 2048)


class UnifiedOperation(Operation):
    """What is always legal, and what `ask` answers."""

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        return None

    def close(self, model: UnifiedModel, answer: Answer) -> Answer:
        """The same answer. A change ends the pass; a refusal changes nothing, but in a
        wrapper, where some caches may have changed before one refused."""
        error = answer.get("error")
        if error is None or (model.config["kind"] == "wrapper" and error != "usage"):
            model.close()
        return answer


class CopyPrefix(UnifiedOperation):
    name = "copy_prefix"
    fields: ClassVar[Mapping[str, Schema]] = {"source": ANY, "target": ANY, "length": ANY}

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        count = model.config["sequences"]
        if count == 1:
            return None
        origin = source.below(count)
        target = (origin + 1 + source.below(count - 1)) % count
        end = model.get_end(origin)
        lengths = [end, end // 2, max(0, end - 1), 1, end + 1, 0, source.between(0, end)]
        length = source.pick(lengths)
        return {"op": self.name, "source": origin, "target": target, "length": length}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        fields = op["source"], op["target"], op["length"]
        answer = model.ask(lambda: model.cache.copy_prefix(*fields), self.name)
        return self.close(model, answer)

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        fields = op["source"], op["target"], op["length"]
        return subject.ask(lambda: subject.cache.copy_prefix(*fields))

    def describe(self, op: Op) -> str:
        return (
            f"copy the first {op['length']} positions of sequence {op['source']} to"
            f" sequence {op['target']}"
        )


class Remove(UnifiedOperation):
    name = "remove"
    fields: ClassVar[Mapping[str, Schema]] = {
        "sequence": ANY,
        "begin": ANY,
        "end": {**ANY, "type": ["integer", "null"]},
    }

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        sequence = source.below(model.config["sequences"])
        if model.past & {"remove-failed", "forward-failed"} and source.below(4):
            return {"op": self.name, "sequence": sequence, "begin": 0, "end": None}
        if model.moved is not None and source.below(2):
            return self.draw_again(source, model, model.moved)
        behind = model.list_resumptions(sequence)
        if behind and source.below(2):
            begin = source.pick(behind)
            return {"op": self.name, "sequence": sequence, "begin": begin, "end": None}
        end = model.get_end(sequence)
        begin = source.between(0, end)
        begin = source.pick([begin, max(0, end - 1), begin, 0, end, max(0, end - 2)])
        stops = [None, begin + 1, None, begin + 1, begin + 2, end, max(begin, end - 1)]
        stops += [begin, begin + 3, end + 1, (begin + end + 1) // 2]
        stop = source.pick(stops)
        return {"op": self.name, "sequence": sequence, "begin": begin, "end": stop}

    def draw_again(self, source: Source, model: UnifiedModel, sequence: int) -> Op:
        """One more token out of the middle, before the next pass."""
        begin = source.below(max(1, model.get_end(sequence) - 1))
        return {"op": self.name, "sequence": sequence, "begin": begin, "end": begin + 1}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        fields = op["sequence"], op["begin"], op["end"]
        before = model.list_keys()
        answer = model.ask(lambda: model.cache.remove(*fields), self.name)
        model.note_turns(op["sequence"], before)
        return self.close(model, answer)

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        fields = op["sequence"], op["begin"], op["end"]
        return subject.ask(lambda: subject.cache.remove(*fields))

    def describe(self, op: Op) -> str:
        begin, end = op["begin"], op["end"]
        owner = f"of sequence {op['sequence']}"
        if end is None:
            return f"remove position {begin} and all behind it {owner}"
        if end == begin + 1:
            return f"remove position {begin} {owner}"
        if 0 <= begin < end:
            return f"remove positions {begin}-{end - 1} {owner}"
        return f"remove what is from position {begin} on and before {end} {owner}"


class CanResume(UnifiedOperation):
    name = "can_resume"
    fields: ClassVar[Mapping[str, Schema]] = {"sequence": ANY, "position": ANY}

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        sequence = source.below(model.config["sequences"])
        end = model.get_end(sequence)
        far = [end + 1, end + 2, end + 5, 0]
        near = [max(0, end - back) for back in (1, 2, 3, 5)]
        behind = model.list_resumptions(sequence)
        position = source.pick([end, *near, *far, source.between(0, end), *behind])
        return {"op": self.name, "sequence": sequence, "position": position}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        fields = op["sequence"], op["position"]
        return model.ask(lambda: model.cache.can_resume(*fields), self.name)

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        fields = op["sequence"], op["position"]
        return subject.ask(lambda: subject.cache.can_resume(*fields))

    def describe(self, op: Op) -> str:
        return f"can sequence {op['sequence']} resume at position {op['position']}?"


NAMES = ("x", "y")


class Save(UnifiedOperation):
    name = "save"
    fields: ClassVar[Mapping[str, Schema]] = {"into": NAME}

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        if model.config["kind"] not in CAUSAL:
            return f"a {model.config['kind']} cache is not saved"
        if op["into"] not in model.saved and len(model.saved) >= 16:
            return "there are 16 saved contents already"
        return None

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        return {"op": self.name, "into": source.pick(NAMES)}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        (part,) = model.causal
        model.saved[op["into"]] = Saved(part.save(), dict(model.turns[0]))
        return {}

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        subject.saved[op["into"]] = subject.cache.save()
        return {}

    def describe(self, op: Op) -> str:
        return f"save all as {op['into']}"


class Load(UnifiedOperation):
    name = "load"
    fields: ClassVar[Mapping[str, Schema]] = {
        "from": NAME,
        "fresh": {"type": "boolean", "default": False},
    }

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        known = op["from"] in model.saved
        return None if known else f"nothing was saved as {op['from']}"

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if not model.saved:
            return None
        fresh = source.below(3) == 2
        return {
            "op": self.name,
            "from": source.pick(list(model.saved)),
            "fresh": fresh,
        }

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        (part,) = model.causal
        saved = model.saved[op["from"]]
        part.load(saved.tokens)
        model.turns[0] = dict(saved.turns)
        model.past.add("loaded")
        model.close()
        return {}

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        if op["fresh"]:
            subject.reopen()
        return subject.ask(lambda: subject.cache.load(subject.saved[op["from"]]))

    def describe(self, op: Op) -> str:
        where = " into a fresh cache" if op["fresh"] else ""
        return f"load what was saved as {op['from']}{where}"


def why_not_layer(op: Op, model: UnifiedModel) -> str | None:
    """Why there is nothing to ask of this layer, whatever the state."""
    count = len(model.parts)
    if op["type"] >= count:
        return f"there are {count} layer types"
    is_encoder = model.kinds[op["type"]] == "encoder"
    if is_encoder and op["layer"] not in range(model.config["layers"]):
        return "an encoder cache does not know how many layers there are"
    return None


class Get(UnifiedOperation):
    """Once more what the open pass shows; a usage error where none is open, or where the
    layer was never written."""

    name = "get"
    fields: ClassVar[Mapping[str, Schema]] = {
        "layer": {**SMALL, "default": 0},
        "type": {**integer(0, 3), "default": 0},
    }

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        return why_not_layer(op, model)

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if model.batch is None:
            return None
        layer = source.below(model.config["layers"])
        return {"op": self.name, "layer": layer, "type": source.below(len(model.parts))}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        if model.batch is None or op["layer"] not in range(model.config["layers"]):
            return {"error": "usage"}
        if model.reserved:
            return {}
        answer = answer_pass(model, model.batch) if model.rows else {}
        part: Answer = answer["caches"][op["type"]] if "caches" in answer else answer
        return {name: value for name, value in part.items() if name != "states"}

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        return subject.get(op["type"], op["layer"], model)

    def describe(self, op: Op) -> str:
        return f"get layer {op['layer']} of type {op['type']} again"


class Put(UnifiedOperation):
    """K and V once more, as they were, or of a form that the pass must refuse."""

    name = "put"
    fields: ClassVar[Mapping[str, Schema]] = {
        "layer": {**SMALL, "default": 0},
        "type": {**integer(0, 3), "default": 0},
        "rows": optional(integer(0, 64)),
        "heads": optional(integer(1, 64)),
        "key_dim": optional(integer(1, 64)),
        "value_dim": optional(integer(1, 64)),
    }

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        return why_not_layer(op, model)

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if model.batch is None:
            return None
        which = source.below(len(model.parts))
        part = model.parts[which]
        if isinstance(part, EncoderCache) and part.image is None:
            return None
        layer = source.below(model.config["layers"])
        return {"op": self.name, "layer": layer, "type": which}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        config, part = model.config, model.parts[op["type"]]
        if model.batch is None or op["layer"] not in range(config["layers"]):
            return {"error": "usage"}
        right = {name: config[name] for name in ("heads", "key_dim", "value_dim")}
        right["rows"] = len(model.batch)
        if isinstance(part, EncoderCache):
            right["rows"] = IMAGE
            if model.reserved:
                if op["type"] not in model.fixed:
                    return {}
            elif refused := self.put_image(part, model):
                return refused
        wrong = any(op[name] not in (None, value) for name, value in right.items())
        return {"error": "usage"} if wrong else {}

    def put_image(self, part: EncoderCache, model: UnifiedModel) -> Answer:
        """What the encoder made of the image of this pass, as it is stored already."""
        assert model.batch is not None
        first = model.tags.stop
        return model.ask(lambda: part.put(range(first, first + IMAGE)), self.name)

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        return subject.put_again(op, model)

    def describe(self, op: Op) -> str:
        names = ("rows", "heads", "key_dim", "value_dim")
        other = [f"{name} {op[name]}" for name in names if op[name] is not None]
        form = f" with {', '.join(other)}" if other else " again"
        return f"put layer {op['layer']} of type {op['type']}{form}"


LARGEST = 64
"""Window or memory of a cache that is opened beside."""


class Open(UnifiedOperation):
    """One more cache, perhaps of other sizes, which is dropped at once."""

    name = "open"
    fields: ClassVar[Mapping[str, Schema]] = {
        "window": integer(0, LARGEST),
        "memory": integer(0, LARGEST),
    }

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        kind = model.config["kind"]
        return None if kind == "swa-memory" else f"a {kind} cache has not both sizes"

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        """Of the same sizes: whatever caches have in common, the live one is not to
        notice."""
        window, memory = model.config["window"], model.config["memory"]
        if max(window, memory) > LARGEST:
            return None
        return {"op": self.name, "window": window, "memory": memory}

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        (config,) = list_part_configs(self.get_config(op, model.config))

        def check() -> None:
            open_part(config)

        return model.ask(check, self.name)

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        config = self.get_config(op, subject.config)

        def check() -> None:
            subject.backend.open(config)

        return subject.ask(check)

    def get_config(self, op: Op, config: Mapping[str, Any]) -> Mapping[str, Any]:
        sizes = {"window": op["window"], "memory": op["memory"]}
        return {**config, **sizes}

    def describe(self, op: Op) -> str:
        return f"open a cache with window {op['window']}, memory {op['memory']}"


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Forward(),
        CopyPrefix(),
        Remove(),
        CanResume(),
        Save(),
        Load(),
        Get(),
        Put(),
        Open(),
    )
}
