"""Defines operations between passes, and operations that repeat a part of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.messages import HELD, PAIR, TYPE, Array
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Op,
    Source,
    format_fields,
    get_given,
    index,
    list_allowed,
    rename,
)
from lockstep.harness.contracts.unified.forward import (
    ANY,
    IMAGE_STORED,
    NOTHING_OR_REFUSAL,
    ROWS,
    SEQUENCE,
    Forward,
    Side,
    UnifiedOperation,
)
from lockstep.harness.contracts.unified.model import (
    CAUSAL,
    IMAGE,
    MAX_ROWS,
    UnifiedModel,
    get_tokens,
    why_illegal_config,
)
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.document import NAME, NAMES, Schema, integer, optional
from lockstep.reference.encoder import EncoderCache


class CopyPrefix(UnifiedOperation):
    """Replaces the tokens of `target` by the tokens of `source` at positions before
    `length`.

    Answer: `{}` or `error`.
    """

    name, weight = "copy_prefix", 3
    effect = Effect.MOVES
    answer = NOTHING_OR_REFUSAL
    text = "copy the first {length} positions of sequence {source} to sequence {target}"
    changes = has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "source": SEQUENCE,
        "target": SEQUENCE,
        "length": ANY,
    }

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        count = model.config["sequences"]
        if count == 1:
            return None
        origin = source.below(count)
        target = (origin + 1 + source.below(count - 1)) % count
        together = {value for owners in model.list_shared_states() for value in owners}
        alone = [value for value in range(count) if value not in together]
        if together and len(alone) > 1 and source.below(4):  # a second pair of sequences
            origin = source.pick(
                [value for value in alone if model.get_end(value)] or alone
            )
            target = source.pick([value for value in alone if value != origin])
        end = model.get_end(origin)
        lengths = [end, end // 2, max(0, end - 1), 1, end + 1, 0, source.between(0, end)]
        length = source.pick(lengths)
        return {"op": self.name, "source": origin, "target": target, "length": length}

    def run_reference(self, op: Op, model: UnifiedModel) -> Answer:
        is_part = 0 < op["length"] < model.get_end(op["source"])
        answer = super().run_reference(op, model)
        if is_part and not answer:
            model.copied = op["target"]
        return answer

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        count = model.config["sequences"]
        sequence_drawn, outside = source.below(count), count + source.below(2)
        wrong = [
            (sequence_drawn, sequence_drawn, 1),
            (outside, sequence_drawn, 1),
            (sequence_drawn, outside, 1),
            (-1, sequence_drawn, 1),
            (sequence_drawn, -1, 1),
        ]
        origin, target, length = source.pick([*wrong, (0, count - 1, -1)])
        return {"op": self.name, "source": origin, "target": target, "length": length}


class Remove(UnifiedOperation):
    """Removes the positions [begin, end) of a sequence; `end` null: to the end. Later
    tokens move up, and their K is rotated to the new position.

    Answer: `{}` or `error`.
    """

    name, weight = "remove", 7
    effect = Effect.REMOVES
    answer = NOTHING_OR_REFUSAL
    changes = writes = has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "sequence": SEQUENCE,
        "begin": ANY,
        "end": {**ANY, "type": ["integer", "null"]},
    }

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        sequence = source.below(model.config["sequences"])
        if model.past & {"remove-failed", "forward-failed"} and source.below(4):
            return {"op": self.name, "sequence": sequence, "begin": 0, "end": None}
        if model.moved is not None and source.below(2):
            return self.draw_again(source, model, model.moved)
        resumptions = model.list_resumptions(sequence)
        if resumptions and source.below(2):
            begin = source.pick(resumptions)
            return {"op": self.name, "sequence": sequence, "begin": begin, "end": None}
        end, images = model.get_end(sequence), model.list_places(sequence)
        images = [place for place in images if len({*place}) > 1]
        borders = [at for t, *yx in images for at in (max(0, t - 1), t, t + 1, max(yx))]
        begin = source.between(0, end)
        begin = source.pick([begin, max(0, end - 1), begin, 0, end, max(0, end - 2)])
        if borders and source.below(2):
            begin = source.pick(borders)
        stops = [None, begin + 1, None, begin + 1, begin + 2, end, max(begin, end - 1)]
        stops += [begin, begin + 3, end + 1, (begin + end + 1) // 2]
        stops += [at for at in borders if at > begin]
        stop = source.pick(stops)
        return {"op": self.name, "sequence": sequence, "begin": begin, "end": stop}

    def draw_again(self, source: Source, model: UnifiedModel, sequence: int) -> Op:
        """Draws the removal of one more token in the middle, before the next pass."""
        begin = source.below(max(1, model.get_end(sequence) - 1))
        return {"op": self.name, "sequence": sequence, "begin": begin, "end": begin + 1}

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        count = model.config["sequences"]
        sequence_drawn, end = source.below(count), model.get_end(0)
        wrong = [
            (sequence_drawn, end + 1, end),
            (sequence_drawn, 2, 1),
            (count, 0, None),
            (-1, 0, None),
        ]
        sequence, begin, stop = source.pick(
            [*wrong, (sequence_drawn, -1, None), (sequence_drawn, -1, 1)]
        )
        return {"op": self.name, "sequence": sequence, "begin": begin, "end": stop}

    def run_reference(self, op: Op, model: UnifiedModel) -> Answer:
        answer = super().run_reference(op, model)
        errors = {allowed.get("error", "usage") for allowed in list_allowed(answer)}
        model.unclear = op["sequence"] if errors - {"usage"} else None
        return answer

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        keys = model.list_keys()
        answer = super().run_on_content(op, model)
        model.note_turns(op["sequence"], keys)
        if answer.get("error", "usage") != "usage":
            model.past.add("remove-failed")
        return answer

    def describe(self, op: Op) -> str:
        begin, end, owner = op["begin"], op["end"], f"of sequence {op['sequence']}"
        if end is None:
            return f"remove position {begin} and all after it {owner}"
        if end == begin + 1:
            return f"remove position {begin} {owner}"
        return f"remove positions [{begin}, {end}) {owner}"


class CanResume(UnifiedOperation):
    """Asks whether the sequence can continue at this position.

    Answer: `result`.
    """

    name, weight = "can_resume", 2
    effect = Effect.READS
    answer = schemas.any_of(schemas.record(result=schemas.BOOLEAN), schemas.USAGE)
    text = "can sequence {sequence} resume at position {position}?"
    has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {"sequence": SEQUENCE, "position": ANY}

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        sequence = source.below(model.config["sequences"])
        end = model.get_end(sequence)
        outside = [end + 1, end + 2, end + 5, 0]
        positions_near = [max(0, end - back) for back in (1, 2, 3, 5)]
        resumptions = model.list_resumptions(sequence)
        position = source.pick(
            [end, *positions_near, *outside, source.between(0, end), *resumptions]
        )
        return {"op": self.name, "sequence": sequence, "position": position}

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        count = model.config["sequences"]
        sequence, position = source.pick(((count, 0), (-1, 0), (0, -1)))
        return {"op": self.name, "sequence": sequence, "position": position}


CONTENTS = ("x", "y")
SAVED: Schema = {**NAME, NAMES: "saved"}


SAVING = (*CAUSAL, "recurrent", "wrapper")


class Save(UnifiedOperation):
    """Stores all content as `into`: tokens, states with their checkpoints, an image."""

    name, weight = "save", 2
    effect = Effect.MOVES
    messages = {"save": ({}, messages.SAVED)}
    answer = schemas.NOTHING
    text = "save all as {into}"
    kinds = SAVING
    fields: ClassVar[Mapping[str, Schema]] = {"into": SAVED}

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        if model.config["kind"] not in SAVING:
            return f"caches of the kind {model.config['kind']} are not saved"
        return "after a refusal, its content is not known" if model.others else None

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        return {"op": self.name, "into": source.pick(CONTENTS)}

    def run(self, op: Op, side: Side) -> Answer:
        side.saved[op["into"]] = side.save()
        return {}


OTHER: Mapping[str, Schema] = dict.fromkeys(
    ("heads", "key_dim", "value_dim", "layers", "sequences", "window", "chunk"),
    optional(integer(1, 64)),
)
"""The sizes of a cache whose saved content another cache must refuse."""


class Load(UnifiedOperation):
    """Loads the content that was saved as `from`; if `fresh`, into a new cache. If one of
    `heads`, `key_dim`, `value_dim`, `layers`, `sequences`, `window` and `chunk` is set,
    instead loads the content of a cache with this size and one token. This must be
    refused.

    Answer: `{}` or `error`.
    """

    name, weight = "load", 3
    effect = Effect.MOVES
    messages = {"load": (messages.SAVED, {})}
    answer = schemas.NOTHING_OR_USAGE
    kinds = SAVING
    writes = has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "from": SAVED,
        "fresh": {"type": "boolean", "default": False},
        **OTHER,
    }

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        if op["from"] not in model.saved:
            return f"nothing was saved as {op['from']}"
        sizes = get_given(op, OTHER)
        if not sizes:
            return None
        config = model.config
        if op["fresh"] or len(sizes) > 1 or not any(map(get_tokens, model.parts)):
            return "only a cache with tokens has a size that differs from one other"
        [(name, size)] = sizes.items()
        if config[name] in (None, 0, size):
            return f"{name} {size} is no other size of this cache"
        return why_illegal_config({**config, **sizes})

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op | None:
        if not model.saved:
            return None
        name, of = source.pick(list(OTHER)), source.pick(list(model.saved))
        size = source.pick((1, 2, 3)) if name != "key_dim" else source.pick((4, 6, 8))
        return {"op": self.name, "from": of, name: size}

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if not model.saved:
            return None
        fresh = source.below(3) == 2
        name = source.pick(list(model.saved))
        return {"op": self.name, "from": name, "fresh": fresh}

    def run(self, op: Op, side: Side) -> Answer:
        return side.ask(lambda: side.load(side.saved[op["from"]], op["fresh"]))

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        is_other = bool(get_given(op, OTHER))
        return {"error": "usage"} if is_other else super().run_on_content(op, model)

    def run_backend(self, op: Op, system: UnifiedSystem, model: UnifiedModel) -> Answer:
        if sizes := get_given(op, OTHER):
            return system.load_other(sizes)
        return super().run_backend(op, system, model)

    def describe(self, op: Op) -> str:
        if sizes := format_fields(op, get_given(op, OTHER)):
            return f"load what a cache with {sizes} has saved"
        where = " into a fresh cache" if op["fresh"] else ""
        return f"load {op['from']}{where}"


LAYER: Mapping[str, Schema] = {
    "layer": {**integer(-4, 2048), "default": 0},
    "type": {**integer(0, 3), "default": 0},
}
FORM: Mapping[str, Schema] = {
    "rows": optional(integer(0, MAX_ROWS + 1)),
    **dict.fromkeys(
        ("heads", "value_heads", "key_dim", "value_dim"), optional(integer(1, 1 << 11))
    ),
    "axes": optional(integer(3, 5)),
}


class Again(UnifiedOperation):
    """Repeats part of a pass, in one layer."""

    is_method = False
    has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = LAYER

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        """Returns the reason why this layer can never have an answer, or None."""
        count = len(model.parts)
        if op["type"] >= count:
            return f"there are {count} layer types"
        is_encoder = model.kinds[op["type"]] == "encoder"
        if is_encoder and op["layer"] not in range(model.config["layers"]):
            return "an encoder cache does not know how many layers there are"
        return None


class Get(Again):
    """Reads a layer of the open pass again. The call is invalid if no pass is open, or if
    the layer was never written.

    Answer: the answer of this cache to `forward`.
    """

    name, text = "get", "get layer {layer} of type {type} again"
    effect = Effect.READS
    messages = {
        "get": ({"layer": int, **TYPE}, {**PAIR, "mask": Array}),
        "get.image": ({"layer": int, **TYPE}, HELD),
    }

    def get_answer(self, kind: str) -> Schema:
        options = {"encoder": [IMAGE_STORED], "wrapper": [IMAGE_STORED, ROWS]}
        return schemas.any_of(*options.get(kind, [ROWS]), schemas.NOTHING, schemas.USAGE)

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if model.batch is None:
            return None
        layer = source.below(model.config["layers"])
        return {"op": self.name, "layer": layer, "type": source.below(len(model.parts))}

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        """Draws a layer that is never written or, if no pass is open, any layer."""
        layers = model.config["layers"]
        layer = source.pick((0, layers, layers - 1, layers + 3, -1))
        return {"op": self.name, "layer": layer, "type": source.below(len(model.parts))}

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        if model.batch is None or op["layer"] not in range(model.config["layers"]):
            return {"error": "usage"}
        if model.reserved:
            return {}
        answer = model.answer_pass(model.batch) if model.rows else {}
        member: Answer = answer["caches"][op["type"]] if "caches" in answer else answer
        return {name: value for name, value in member.items() if name != "states"}

    def run_backend(self, op: Op, system: UnifiedSystem, model: UnifiedModel) -> Answer:
        return system.get(op["type"], op["layer"], model)


class Put(Again):
    """Puts K and V of a layer again: with the announced sizes (null), or with another
    size or number of axes, which must be refused. If `states` is set, writes the
    recurrent states of this number of sequences instead.

    Answer: `{}` or `error`.
    """

    name, writes = "put", True
    effect = Effect.CONTROL
    messages = {"put": ({"layer": int, **PAIR, **TYPE}, {})}
    answer = schemas.NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        **LAYER,
        **FORM,
        "states": optional(integer(0, MAX_ROWS + 1)),
    }

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        states, reason = op.get("states"), super().why_illegal(op, model)
        if reason or states is None:
            return reason
        if model.kinds[op["type"]] != "recurrent":
            return f"a {model.kinds[op['type']]} cache has no states"
        is_known = op["layer"] in range(model.config["layers"])
        owners = len(set(model.batch.sequences)) if model.batch else None
        return None if is_known and states != owners else "the pass would write them"

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        if model.batch is None:
            return None
        which = source.below(len(model.parts))
        member = model.parts[which]
        if isinstance(member, EncoderCache) and member.image is None:
            return None
        layer = source.below(model.config["layers"])
        return {"op": self.name, "layer": layer, "type": which}

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        config, rows = model.config, len(model.batch) if model.batch else 1
        wrong: Sequence[Mapping[str, int]] = (
            {"rows": rows + 1},
            {"rows": rows - 1},
            {"heads": config["heads"] + 1},
            {"heads": max(1, config["heads"] - 1)},
            {"value_heads": config["heads"] + 1},
            {"key_dim": config["key_dim"] + 2},
            {"value_dim": config["value_dim"] + 1},
            {"axes": 3},
            {"axes": 5},
            {"layer": config["layers"]},
            {"layer": -1},
            {},
        )
        layer, which = source.below(config["layers"]), source.below(len(model.parts))
        is_recurrent = model.kinds[which] == "recurrent"
        if model.batch and is_recurrent and not source.below(3):
            wrong = [{"states": rows + 1}]
        return {"op": self.name, "layer": layer, "type": which, **source.pick(wrong)}

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        config, member = model.config, model.parts[op["type"]]
        if op.get("states") is not None:
            return {"error": "usage"}
        if model.batch is None or op["layer"] not in range(config["layers"]):
            return {"error": "usage"}
        sizes = {name: config[name] for name in ("heads", "key_dim", "value_dim")}
        sizes |= {"rows": len(model.batch), "value_heads": config["heads"], "axes": 4}
        if isinstance(member, EncoderCache):
            sizes["rows"] = IMAGE
            if model.reserved:
                if op["type"] not in model.fixed:
                    return {}
            elif refused := self.put_image(member, model):
                return refused
        wrong = any(op[name] not in (None, value) for name, value in sizes.items())
        return {"error": "usage"} if wrong else {}

    def put_image(self, member: EncoderCache, model: UnifiedModel) -> Answer:
        """Puts the image of this pass, which is already stored, once more."""
        assert model.batch is not None
        first = model.tags.stop
        return model.ask(lambda: member.put(range(first, first + IMAGE)))

    def run_backend(self, op: Op, system: UnifiedSystem, model: UnifiedModel) -> Answer:
        return system.put_again(op, model)

    def describe(self, op: Op) -> str:
        if op.get("states") is not None:
            return f"write {op['states']} states of layer {op['layer']}"
        form_fields = format_fields(op, [name for name in FORM if op[name] is not None])
        form = f" with {form_fields}" if form_fields else " again"
        return f"put layer {op['layer']} of type {op['type']}{form}"


LARGEST = 64
"""The largest window or memory of the second cache."""


class Open(UnifiedOperation):
    """Opens a second cache with these sizes, and discards it immediately.

    Answer: `{}` or `error`.
    """

    name = "open"
    effect = Effect.CONTROL
    answer = schemas.NOTHING_OR_USAGE
    kinds = ("swa-memory",)
    is_method = False
    has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "window": integer(0, LARGEST),
        "memory": integer(0, LARGEST),
    }

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        kind = model.config["kind"]
        return None if kind == "swa-memory" else f"a {kind} cache has not both sizes"

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        """Draws the sizes of the existing cache; the second cache must leave this cache
        unchanged."""
        sizes = {name: model.config[name] for name in self.fields}
        return None if max(sizes.values()) > LARGEST else {"op": self.name, **sizes}

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op:
        window = source.between(2, 8)
        return {"op": self.name, "window": window, "memory": source.between(1, window)}

    def run(self, op: Op, side: Side) -> Answer:
        sizes = {name: op[name] for name in self.fields}
        return side.ask(lambda: side.open({**side.config, **sizes}))

    def describe(self, op: Op) -> str:
        return f"open a cache with {format_fields(op, self.fields)}"


OPERATIONS = index(
    Forward(), CopyPrefix(), Remove(), CanResume(), Save(), Load(), Get(), Put(), Open()
)


def rename_owner(op: Op, names: Mapping[int, int]) -> Op:
    return rename(op, OPERATIONS, "sequence", names)
