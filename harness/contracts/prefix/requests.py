"""The base class of prefix operations, and the operations of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.answer_schemas import (
    NOTHING,
    NUMBER,
    OFFSETS,
    TAG_ROWS,
    TAGS,
    USAGE,
    any_of,
    error,
    extend,
    list_of,
    record,
)
from lockstep.harness.contracts.answer_schemas import TOKENS as ANSWERED
from lockstep.harness.contracts.layer.operations import count
from lockstep.harness.contracts.operation import Answer, Effect, Op, Operation, Source
from lockstep.harness.contracts.prefix.drawing import (
    draw_count,
    draw_generated,
    draw_request,
)
from lockstep.harness.contracts.prefix.model import (
    CONVERSATIONS,
    KINDS,
    PrefixModel,
    PrefixSystem,
)
from lockstep.harness.contracts.unified.forward import PASSES, REFUSAL, ROWS, STATES
from lockstep.harness.core.document import (
    INTEGER,
    JOINT,
    MAX_LENGTH,
    NAME,
    Schema,
    integer,
)

Fields = dict[str, Any]
"""The drawn fields of an operation."""

USER: Mapping[str, Schema] = {"user": {**NAME, "default": "a"}}
ITEM: Schema = {"type": ["integer", "number", "string", "boolean", "null"]}
"""A token is an integer. A program file may contain another value; the call is then
invalid."""
TOKENS: Schema = {"type": "array", "maxItems": MAX_LENGTH, "items": ITEM, JOINT: True}
NUMBERS: Schema = {"type": "array", "maxItems": 64, "items": INTEGER}


class PrefixOperation(Operation):
    """An operation that calls a method of the model and of the system.

    Attributes:
        kinds: the kinds that have the operation.
        act: the method of `PrefixModel` and `PrefixSystem`; if empty, `name`.
        method: the method that a backend's cache needs; if empty, `name`; None for no
            method.
        slot_answer: the schema of the answer of slots, if it differs from `answer`.
    """

    kinds: ClassVar[Sequence[str]] = KINDS
    act: ClassVar[str] = ""
    method: ClassVar[str | None] = ""
    slot_answer: ClassVar[Schema | None] = None

    def get_answer(self, kind: str) -> Schema:
        return self.slot_answer if kind == "slots" and self.slot_answer else self.answer

    def why_illegal(self, op: Op, model: PrefixModel) -> str | None:
        kind = model.config["kind"]
        if kind not in self.kinds:
            return f"a {kind} cache has no {self.name}"
        return self.why_illegal_here(op, model)

    def why_illegal_here(self, op: Op, model: Any) -> str | None:
        return None

    def draw(self, source: Source, model: PrefixModel) -> Op | None:
        fields = self.draw_fields(source, model)
        return None if fields is None else {"op": self.name, **fields}

    def draw_fields(self, source: Source, model: Any) -> Fields | None:
        """Draws fields with which the operation is legal now, or None."""
        return {}

    def get_method(self) -> str | None:
        return self.name if self.method == "" else self.method

    def run_reference(self, op: Op, model: Any) -> Answer:
        answer: Answer = getattr(model, self.act or self.name)(op)
        return answer

    def run_backend(self, op: Op, system: Any, model: Any) -> Answer:
        answer: Answer = getattr(system, self.act or self.name)(op, model)
        return answer

    def describe(self, op: Op) -> str:
        user, text = get_user(op), self.describe_here(op)
        return text if user == "a" else f"user {user}: {text}"

    def describe_here(self, op: Op) -> str:
        """Describes the operation without its user."""
        return super().describe(op)


def get_user(op: Op) -> str:
    return str(op.get("user", "a"))


def format_tokens(tokens: Any) -> str:
    return "[" + " ".join(map(str, tokens)) + "]"


# --- schemas of answers -----------------------------------------------------------------


WRONG = USAGE["properties"]["error"]
"""The error after a pass if a generated token is invalid."""

CONTENTS = {"offsets": OFFSETS, "caches": list_of(record(tags=TAGS), NOTHING)}
READ = record(offsets=OFFSETS, caches=list_of(record(visible=TAG_ROWS), NOTHING))
FED = record(offsets=OFFSETS)
FEED = any_of(READ, FED, *(extend(done, error=WRONG) for done in (READ, FED)))

SLOT = record(offsets=OFFSETS, tokens=ANSWERED, remaining=ANSWERED)
SLOT_ENDED = extend(SLOT, stored=NUMBER)
SLOT_BEGUN = any_of(extend(SLOT, slot=NUMBER), error("usage", "no-slot"))
SLOT_BROKEN = extend(SLOT, positions=TAGS)
SLOT_FULL = extend(SLOT_BROKEN, error=REFUSAL["properties"]["error"])
SLOT_PASSES = [
    SLOT,
    *(
        extend(SLOT_BROKEN, **shown["properties"])
        for shown in (ROWS, STATES, PASSES["wrapper"])
    ),
]
SLOT_FED = any_of(
    *SLOT_PASSES, SLOT_FULL, *(extend(done, error=WRONG) for done in SLOT_PASSES)
)

# --- a request --------------------------------------------------------------------------


class Begin(PrefixOperation):
    """Opens a request; a session must refuse `checkpoints`.

    Answer: `remaining`: the tokens to compute, at least one token; `offsets`: the offset
    of each layer; `caches`: the `tags` in each layer. For slots: `slot`: the number of
    the slot; `tokens`: the tokens in the slot; `remaining`.
    """

    name = "begin"
    effect = Effect.MOVES
    answer = any_of(record(remaining=ANSWERED, **CONTENTS), USAGE)
    slot_answer = SLOT_BEGUN
    weight = 9
    fields: ClassVar[Mapping[str, Schema]] = {
        "tokens": TOKENS,
        **USER,
        "checkpoints": {**NUMBERS, "default": []},
    }

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        if op.get("checkpoints") and model.config["kind"] != "session":
            return "only a session is given checkpoints so, and must refuse them"
        if model.has_users and model.is_open(get_user(op)):
            return f"user {op['user']} has an open request"
        return None

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        user = model.draw_new_user(source)
        if user is None:
            return None
        return {"tokens": draw_request(source, model), **user}

    def describe_here(self, op: Op) -> str:
        return f"begin {format_tokens(op['tokens'])}"


class RequestOperation(PrefixOperation):
    """An operation that belongs to an open request."""

    fields: ClassVar[Mapping[str, Schema]] = USER

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        user = model.draw_user(source)
        if not model.is_open(get_user(user)):
            return None
        fields = self.draw_for(get_user(user), source, model)
        return None if fields is None else {**fields, **user}

    def draw_for(self, user: str, source: Source, model: PrefixModel) -> Fields | None:
        """Draws all fields except `user` for this user's request, or returns None."""
        raise NotImplementedError


class Pass(RequestOperation):
    """A pass with the next `count` tokens of a request, or all if fewer remain."""

    def count_tags(self, op: Op) -> int:
        return int(op["count"])

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        if not model.is_open(get_user(op)):
            return "no request is open"
        if model.is_broken(get_user(op)):
            return "the last pass of this request broke off"
        return None


class Feed(Pass):
    """Computes the next `count` remaining tokens, or all if fewer remain. Then adds the
    generated tokens `generate` to the request.

    Answer: `offsets`; `caches`: for each layer, `visible`: the tags that each row sees.
    For slots also `positions`.
    """

    name, method = "feed", "extend"
    effect = Effect.ADDS
    answer = FEED
    slot_answer = SLOT_FED
    weight = 12
    fields: ClassVar[Mapping[str, Schema]] = {
        "count": integer(0, MAX_LENGTH),
        "generate": {**TOKENS, "default": []},
        **USER,
    }

    def draw_for(self, user: str, source: Source, model: PrefixModel) -> Fields | None:
        computed = draw_count(source, len(model.get_remaining(user)))
        generated = draw_generated(source, model, model.get_request(user))
        if not computed and not generated:
            return None
        return {"count": computed, **({"generate": generated} if generated else {})}

    def verify(self, op: Op, system: PrefixSystem, model: PrefixModel) -> None:
        if model.fed:
            system.verify_attention(model)

    def describe_here(self, op: Op) -> str:
        phrases = [f"feed {count(op['count'], 'token')}"] if op["count"] else []
        if op["generate"]:
            phrases.append(f"generate {format_tokens(op['generate'])}")
        return ", ".join(phrases) or "feed nothing"

    def describe_row(self, op: Op, row: int) -> str:
        return f"row {row} of the pass"


class Break(Pass):
    """Breaks off a pass between two layers, as if the backend fails or the user leaves:
    only the first `layers` layers get the tokens.

    Answer: as for `feed`.
    """

    name, act, method = "break", "feed", None
    effect = Effect.ADDS
    answer = READ
    slot_answer = any_of(SLOT_BROKEN, SLOT_FULL)
    weight = 2
    fields: ClassVar[Mapping[str, Schema]] = {
        "count": integer(1, MAX_LENGTH),
        "layers": integer(0, 8),
        **USER,
    }

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        if op["layers"] >= len(model.config["layers"]):
            return "all layers would have seen the tokens"
        reason = super().why_illegal_here(op, model)
        if reason is None and not model.get_remaining(get_user(op)):
            return "no token remains"
        return reason

    def draw_for(self, user: str, source: Source, model: PrefixModel) -> Fields | None:
        remaining = len(model.get_remaining(user))
        if not remaining:
            return None
        count = source.between(1, min(3, remaining))
        return {"count": count, "layers": source.below(len(model.config["layers"]))}

    def describe_here(self, op: Op) -> str:
        tokens, layers = count(op["count"], "token"), count(op["layers"], "layer")
        return f"a pass of {tokens} breaks off after {layers}"


class Overrun(RequestOperation):
    """Computes `count` generated tokens in all layers, and never adds these tokens to the
    request.

    Answer: as for `feed`.
    """

    name, method = "overrun", None
    effect = Effect.ADDS
    answer = READ
    kinds = CONVERSATIONS
    text = "all layers compute {count} more, and the request is not told"
    fields: ClassVar[Mapping[str, Schema]] = {"count": integer(1, MAX_LENGTH)}

    def count_tags(self, op: Op) -> int:
        return int(op["count"])

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        if not model.is_open("a") or model.is_broken("a"):
            return "no request is open, or its last pass broke off"
        return "tokens remain" if model.get_remaining("a") else None

    def draw_for(self, user: str, source: Source, model: PrefixModel) -> Fields:
        return {"count": source.between(1, 3)}


class Close(RequestOperation):
    """Ends a request, and stores the computed tokens.

    Answer: `stored`: the number of stored tokens.

    Attributes:
        early: while tokens remain, one draw in `early` ends the request.
    """

    name = text = "close"
    effect = Effect.MOVES
    answer = any_of(record(stored=NUMBER), USAGE)
    slot_answer = SLOT_ENDED
    weight = 9
    early = 8

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        is_open = not model.has_users or model.is_open(get_user(op))
        return None if is_open else "no request is open"

    def draw_for(self, user: str, source: Source, model: PrefixModel) -> Fields | None:
        if model.get_remaining(user) and source.below(self.early):
            return None
        return {}


class Cancel(Close):
    """Ends a request that was broken off, and stores the computed tokens.

    Answer: `stored`: the number of stored tokens.
    """

    name = text = "cancel"
    act = "close"
    weight = 2
    early = 2
