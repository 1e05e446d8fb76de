"""Defines the operations of the serving contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Fields,
    Op,
    Operation,
    Source,
    get_given,
    index,
)
from lockstep.harness.contracts.serving.drawing import MOST_GENERATED, draw_request
from lockstep.harness.contracts.serving.model import (
    ServingModel,
    answer,
    count_new,
)
from lockstep.harness.contracts.serving.system import ServingSystem
from lockstep.harness.core.document import NAMES, Schema, integer, optional

REQUEST: Schema = {
    "type": "string",
    "pattern": r"^[a-z]{1,3}(?![\s\S])",
    NAMES: "request",
}
SAVED: Schema = {"type": "string", "pattern": r"^s[0-9]{1,3}(?![\s\S])", NAMES: "saved"}
COUNT, SLOT = integer(1, MOST_GENERATED), integer(0, 63)
GENERATED = schemas.record(
    generated={"type": "array", "items": {"type": ["integer", "string"]}}
)

MOST_ASKED = 32
"""The number of tokens of the longest request that a drawn `interrogate` asks for."""

PROMPT: Mapping[str, Schema] = {
    "request": REQUEST,
    "before": {**integer(0, 4096), "default": 0},
    "of": {**REQUEST, **optional(REQUEST)},
    "pieces": {
        "type": "array",
        "maxItems": 4,
        "items": {**schemas.PAIR, "items": integer(0, 8192)},
        "default": [],
    },
    "gap": {**integer(0, 4096), "default": 0},
    "new": {**integer(0, 16384), "default": 0},
    "head": optional(integer(0, 15)),
    "back": optional(integer(0, 8192)),
    "about": {**REQUEST, **optional(REQUEST)},
    "at": optional(integer(0, 8192)),
    "count": {**COUNT, "default": 1},
    "slot": optional(SLOT),
}
"""The prompt has `before` new tokens, the `pieces` [begin, end) of the tokens of request
`of` with `gap` new tokens between them, and `new` new tokens. Then one token asks `head`
for the distance `back`, or for the token with the index `at` in request `about` (null: in
this prompt). If `head` is null, the last token of the prompt asks its usual question."""


class ServingOperation(Operation):
    """An operation that calls the method of the engine with the same name."""

    def draw(self, source: Source, model: ServingModel) -> Op | None:
        fields = self.draw_fields(source, model)
        return None if fields is None else {"op": self.name, **fields}

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        return {}


class RequestOperation(ServingOperation):
    """An operation with a prompt."""

    fields: ClassVar[Mapping[str, Schema]] = PROMPT
    effect = Effect.ADDS
    has_misuse = True

    def count_tags(self, op: Op) -> int:
        return count_new(op)

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        request = model.make_request(op)
        if isinstance(request, str):
            return request
        if not request.generated and not self.has_misuse:
            return "the engine must refuse this request"
        return None

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        return draw_request(source, model)

    def describe(self, op: Op) -> str:
        return f"{self.name} {describe_prompt(op)}"


class Complete(RequestOperation):
    """Runs a request to its end.

    Answer: `generated`: the generated tokens; an ask is text, such as "ask 0:3".
    """

    name, weight = "complete", 8
    answer = schemas.any_of(GENERATED, schemas.USAGE)

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        request = model.start(op, "done")
        request.read = len(request.generated)
        return answer(request.generated) if request.generated else {"error": "usage"}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.complete(op, model)

    def draw_misuse(self, source: Source, model: ServingModel) -> Op | None:
        lengths = (0, model.config["context"], model.config["context"] + 1)
        return {"op": self.name, "request": "z", "new": source.pick(lengths)}


class Queue(RequestOperation):
    """Prepares a request for the next `run`."""

    name, weight, has_misuse = "queue", 6, False
    answer = schemas.NOTHING

    def get_method(self) -> str | None:
        return "complete"

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.start(op, "queued")
        return {}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.queue(op, model)


class Run(ServingOperation):
    """Submits all prepared requests at the same time, and waits for all of them.

    Answer: `caches`: for each request, in order, `generated`.
    """

    name, weight = "run", 4
    effect = Effect.READS
    answer = schemas.record(caches=schemas.list_of(GENERATED))
    text = "run all queued requests"

    def get_method(self) -> str | None:
        return "complete"

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        return None if model.list_states("queued") else "no request is queued"

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        queued = [model.requests[name] for name in model.list_states("queued")]
        for request in queued:
            request.state, request.read = "done", len(request.generated)
        return {"caches": [answer(request.generated) for request in queued]}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.run()


class Fork(RequestOperation):
    """Runs a request that has several answers to one prompt.

    Answer: `caches`: for each answer, `generated`.
    """

    name, weight, has_misuse = "fork", 4, False
    fields: ClassVar[Mapping[str, Schema]] = {**PROMPT, "answers": integer(2, 4)}
    answer = schemas.record(caches=schemas.list_of(GENERATED))

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        return draw_request(source, model, answers=source.pick((2, 3, 4)))

    def describe(self, op: Op) -> str:
        return f"{super().describe(op)}; {op['answers']} answers"

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        request = model.start(op, "done")
        request.read = len(request.generated)
        return {"caches": [answer(request.generated)] * op["answers"]}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.fork(op, model)


class Begin(RequestOperation):
    """Submits a request, whose tokens `read` returns while other requests run."""

    name, weight, has_misuse = "begin", 4, False
    answer = schemas.NOTHING

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.start(op, "open")
        return {}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.begin(op, model)


class StreamOperation(ServingOperation):
    """An operation on an open request, which `begin` has submitted."""

    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST}

    def get_method(self) -> str | None:
        return "begin"

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        if op["request"] not in model.list_states("open"):
            return f"request {op['request']} is not open"
        return None

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        streams = model.list_states("open")
        return {"request": source.pick(streams)} if streams else None


class Read(StreamOperation):
    """Waits for the next tokens of an open request.

    Answer: `generated`: these tokens, at most `count`.
    """

    name, weight = "read", 4
    effect = Effect.READS
    fields: ClassVar[Mapping[str, Schema]] = {**StreamOperation.fields, "count": COUNT}
    answer = GENERATED

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        fields = super().draw_fields(source, model)
        return fields and {**fields, "count": source.pick((1, 2, 256, 4))}

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        request = model.requests[op["request"]]
        begin = request.read
        request.read = min(begin + op["count"], len(request.generated))
        if request.read == len(request.generated):
            request.state = "done"
        return answer(request.generated[begin : request.read])

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.read(op["request"], op["count"])


class Abort(StreamOperation):
    """Ends an open request before it has generated all tokens."""

    name, weight = "abort", 2
    effect = Effect.CONTROL
    answer = schemas.NOTHING

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.requests[op["request"]].state = "aborted"
        model.past.add("aborted")
        return {}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.abort(op)


class Interrogate(ServingOperation):
    """Repeats the tokens of an earlier request as prompts, once for each distance. Each
    prompt asks a head for the token at its distance.

    Answer: `caches`: `generated` for each distance, from 1 on.
    """

    name, weight = "interrogate", 2
    effect = Effect.READS
    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST, "head": integer(0, 15)}
    answer = schemas.record(caches=schemas.list_of(GENERATED))
    text = "ask head {head} for each token of request {request}"

    def get_method(self) -> str | None:
        return "complete"

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        if op["request"] not in model.list_states("done", "aborted"):
            return f"request {op['request']} has not ended"
        if op["head"] not in range(len(model.probe.heads)):
            return "the probe has no such head"
        return None if model.list_asked(op) else "the head sees nothing there"

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        requests, ended = model.requests, model.list_states("done", "aborted")
        short = [name for name in ended if len(requests[name].tokens) <= MOST_ASKED]
        if not short:
            return None
        head = source.below(len(model.probe.heads))
        return {"request": source.pick(short), "head": head}

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        requested = model.list_asked(op)
        return {"caches": [answer([token]) for _, token in requested]}

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.interrogate(op, model)


class IdleOperation(ServingOperation):
    """An operation on the engine while no request is open."""

    effect = Effect.CONTROL
    answer = schemas.NOTHING

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        return "a request is open" if model.list_states("open") else None

    def run_backend(self, op: Op, system: ServingSystem, model: ServingModel) -> Answer:
        return system.control(op)


class Flush(IdleOperation):
    """Drops all cached prefixes."""

    name, text = "flush", "drop all cached prefixes"

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.past.add("flushed")
        return {}


class SlotOperation(IdleOperation):
    """Saves or restores the content of a slot."""

    fields: ClassVar[Mapping[str, Schema]] = {"slot": SLOT, "name": SAVED}

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        if op["slot"] >= (model.config["slots"] or 0):
            return "there is no such slot"
        return super().why_illegal(op, model)

    def draw_fields(self, source: Source, model: ServingModel) -> Fields:
        slots = model.config["slots"]
        if slots is None:
            return None
        name = f"s{source.below(3)}"
        return {"slot": source.below(slots), "name": name}


class Save(SlotOperation):
    """Saves the content of a slot under a name."""

    name, text = "save", "save slot {slot} as {name}"

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.saved.add(op["name"])
        return {}


class Restore(SlotOperation):
    """Replaces the content of a slot by saved content."""

    name, text, weight = "restore", "restore slot {slot} from {name}", 2

    def why_illegal(self, op: Op, model: ServingModel) -> str | None:
        if op["name"] not in model.saved:
            return f"nothing is saved as {op['name']}"
        return super().why_illegal(op, model)

    def run_reference(self, op: Op, model: ServingModel) -> Answer:
        model.past.add("restored")
        return {}


OPERATIONS = index(
    *(
        Complete(),
        Queue(),
        Run(),
        Fork(),
        Begin(),
        Read(),
        Abort(),
        Interrogate(),
        Flush(),
        Save(),
        Restore(),
    )
)


def describe_prompt(op: Op) -> str:
    """Formats the fields of a request: "c: tokens 0–8 of a, 2 new; ask head 1 …"."""
    pieces = [f"{begin}–{end} of {op['of']}" for begin, end in op["pieces"]]
    if op["gap"] and len(pieces) > 1:
        pieces = [
            *pieces[:1],
            *(x for piece in pieces[1:] for x in (f"{op['gap']} new", piece)),
        ]
    ends = [f"{op[name]} new" if op[name] else "" for name in ("before", "new")]
    tokens = ", ".join(filter(None, (ends[0], *pieces, ends[1]))) or "no tokens"
    requested: dict[str, Any] = get_given(op, ("head", "back", "about", "at"))
    ask = " ".join(f"{name} {value}" for name, value in requested.items())
    extra = get_given(
        {**op, "count": None if op["count"] == 1 else op["count"]}, ("count", "slot")
    )
    tail = "".join(f", {name} {value}" for name, value in extra.items())
    return f"{op['request']}: {tokens}{f'; ask {ask}' if ask else ''}{tail}"
