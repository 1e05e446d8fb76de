"""The operations of the prefix contract: one class for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.contracts.answer_schemas import (
    NOTHING,
    NOTHING_OR_USAGE,
    NUMBER,
    USAGE,
    any_of,
    extend,
    record,
)
from lockstep.harness.contracts.answer_schemas import TOKENS as ANSWERED
from lockstep.harness.contracts.layer.operations import count
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Effect,
    Op,
    Operation,
    Source,
    ask,
    index,
)
from lockstep.harness.contracts.prefix.answers import (
    CONTENTS,
    FEED,
    READ,
    SLOT_BEGUN,
    SLOT_BROKEN,
    SLOT_ENDED,
    SLOT_FED,
    SLOT_FULL,
)
from lockstep.harness.contracts.prefix.conversations import ConversationModel
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
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.core.document import (
    DERIVED,
    INTEGER,
    JOINT,
    MAX_LENGTH,
    NAME,
    Schema,
    integer,
    optional,
)
from lockstep.reference.slots import Slots
from lockstep.reference.trie import Trie

Fields = dict[str, Any]
"""The drawn fields of an operation."""

USER: Mapping[str, Schema] = {"user": {**NAME, "default": "a"}}
ITEM: Schema = {"type": ["integer", "number", "string", "boolean", "null"]}
"""A token is an integer. Anything else is a mistake of usage, which the file may hold."""
TOKENS: Schema = {"type": "array", "maxItems": MAX_LENGTH, "items": ITEM, JOINT: True}
NUMBERS: Schema = {"type": "array", "maxItems": 64, "items": INTEGER}


class PrefixOperation(Operation):
    """An operation, carried out by a method of the model and of the system.

    Attributes:
        kinds: the kinds that have it.
        act: the method of `PrefixModel` and `PrefixSystem`; `name` if empty.
        method: the method that a backend's cache needs; None for none, `name` if empty.
        slot_answer: the schema of the answer of slots, where it differs.
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


def join(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items))


# --- a request --------------------------------------------------------------------------


class Begin(PrefixOperation):
    """Opens a request; of a session, checkpoints are refused.

    Answer: `remaining` tokens to compute, at least one; `offsets` of the layers;
    `caches`: the `tags` each holds. Of slots `slot`, the `tokens` held, `remaining`.
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
        """Draws the fields but `user` for the request of this user, or None."""
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
    """Computes the next `count` remaining tokens, or all if fewer remain; then
    `generate` are generated.

    Answer: `offsets`; `caches`: in each layer the `visible` rows. Of slots also
    `positions`.
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
    """Breaks a pass off between two layers, since the backend fails or the user leaves:
    only the first `layers` see the tokens.

    Answer: As of `feed`.
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
    """Runs all layers ahead of the request: `count` tokens that were generated and that
    the request is never told.

    Answer: As of `feed`.
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
    """Ends a request, and stores what was computed.

    Answer: `stored`: tokens that are kept.

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
    """Ends a request that was broken off, and stores what was computed.

    Answer: `stored`: tokens that are kept.
    """

    name = text = "cancel"
    act = "close"
    weight = 2
    early = 2


def format_tokens(tokens: Any) -> str:
    return "[" + " ".join(map(str, tokens)) + "]"


# --- what is stored ---------------------------------------------------------------------


class Refuse(PrefixOperation):
    """Makes the caches below refuse: in the next begin these layers refuse to go back,
    or raise an error; under slots, the cache refuses to be cut the next time."""

    name, method = "refuse", None
    effect = Effect.CONTROL
    answer = NOTHING
    fields: ClassVar[Mapping[str, Schema]] = {
        "layers": {**NUMBERS, "default": []},
        "raising": {"type": "boolean", "default": False},
    }

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        if model.has_users:
            return {}
        if model.is_open("a"):
            return None
        layers = len(model.config["layers"])
        chosen = sorted({source.below(layers), source.below(layers)})
        return {"layers": chosen, **({"raising": True} if source.below(2) else {})}

    def describe_here(self, op: Op) -> str:
        how = "raise an error instead of going" if op["raising"] else "refuse to go"
        if op["layers"]:
            return f"layers {join(op['layers'])} {how} back the next time"
        return "the cache refuses to be cut the next time"


class Checkpoint(PrefixOperation):
    """Schedules captures of the next request after so many tokens."""

    name, method = "checkpoint", None
    effect = Effect.CONTROL
    answer = NOTHING
    kinds = ("trie",)
    weight = 2
    fields: ClassVar[Mapping[str, Schema]] = {"offsets": NUMBERS}

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        if model.is_open("a"):
            return None
        offsets_near = [
            len(path) - less for path in model.list_stored() for less in (0, 1)
        ]
        offsets_near = [offset for offset in offsets_near if offset > 0] or [1]
        offsets = [  # unordered, with possible repetitions
            source.pick(offsets_near)
            if source.below(2)
            else source.between(1, model.reach)
            for _ in range(1 + source.below(2))
        ]
        return {"offsets": offsets}

    def describe_here(self, op: Op) -> str:
        return f"capture the next request after {join(op['offsets'])} tokens"


class Count(PrefixOperation):
    """Counts what is stored.

    Answer: `tokens`, of a trie `bytes`.
    """

    name, method = "count", "count_tokens"
    effect = Effect.READS
    kinds = CONVERSATIONS
    text = "count what is stored"
    answer = record(tokens=NUMBER)

    def get_answer(self, kind: str) -> Schema:
        return extend(self.answer, bytes=NUMBER) if kind == "trie" else self.answer


class Statistics(PrefixOperation):
    """Counts all requests so far, and what is stored.

    Answer: `requests`; `hits`, those that reused a token; `asked`, `reused`, their
    tokens; `tokens`, of slots in all of them; `bytes`, 0 but of a trie.
    """

    name, method = "statistics", "get_statistics"
    effect = Effect.READS
    answer = record(**dict.fromkeys(STATISTICS, NUMBER))
    text = "count requests, reused tokens and what is stored"


class Free(PrefixOperation):
    """Forgets everything.

    Answer: As of `begin`, without `remaining`.
    """

    name, text = "free", "free everything"
    effect = Effect.REMOVES
    answer = any_of(record(**CONTENTS), USAGE)
    kinds = CONVERSATIONS

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        return None if model.is_open("a") or source.below(2) else {}


class Limit(PrefixOperation):
    """Sets another limit of stored bytes, kept at once; null: none."""

    name, method = "limit", "set_limit"
    effect = Effect.REMOVES
    answer = NOTHING_OR_USAGE
    kinds = ("trie",)
    weight = 3
    fields: ClassVar[Mapping[str, Schema]] = {
        "bytes": {**optional(integer(-1, 1 << 40)), DERIVED: True}
    }

    def draw_fields(self, source: Source, model: ConversationModel) -> Fields | None:
        parting_first = any(not older for older in model.list_partings().values())
        few = len(model.list_stored()) < 4
        if few and not parting_first and source.below(8):
            return None
        stored = model.describe_store()["bytes"]
        limits = [
            stored - 1,
            stored // 2,
            None,
            stored - 1,
            stored * 5 // 6,
            stored,
            0,
            None,
        ]
        if parting_first and source.below(2):
            limits = [stored - 1, stored * 2 // 3]
        limit = source.pick(limits)
        return {"bytes": limit if limit is None else max(0, limit)}

    def describe_here(self, op: Op) -> str:
        if op["bytes"] is None:
            return "store any number of bytes from now on"
        return f"store at most {op['bytes']} bytes from now on"


# --- mistakes of usage alone ------------------------------------------------------------


class WrongOperation(PrefixOperation):
    """A mistake of usage: an operation that is illegal where a cache could do it."""

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        return None


SIZES = ("interval", "context", "keep")


class Open(WrongOperation):
    """Opens one more cache, with sizes that must be refused.

    Answer: `error`.
    """

    name, method = "open", None
    effect = Effect.CONTROL
    answer = USAGE
    kinds = ("trie", "slots")
    fields: ClassVar[Mapping[str, Schema]] = {
        name: optional(integer(-8, 64)) for name in SIZES
    }

    def why_illegal_here(self, op: Op, model: PrefixModel) -> str | None:
        return None if self.run_reference(op, model) else "such a cache can be opened"

    def run_reference(self, op: Op, model: PrefixModel) -> Answer:
        sizes = {**model.config, **self.get_sizes(op)}
        if isinstance(model, SlotsModel):
            context, keep = sizes["context"], sizes["keep"]
            return ask(lambda: Slots(model.pool, 1, context, keep) and None)
        return ask(lambda: Trie((), list, interval=sizes["interval"]) and None)

    def run_backend(self, op: Op, system: PrefixSystem, model: PrefixModel) -> Answer:
        config = {**system.given, **self.get_sizes(op)}
        return system.ask(lambda: system.backend.open(config) and None)

    def get_sizes(self, op: Op) -> Config:
        return {name: op[name] for name in SIZES if op[name] is not None}

    def describe_here(self, op: Op) -> str:
        sizes = [f"{name} {size}" for name, size in self.get_sizes(op).items()]
        return f"open a cache with {', '.join(sizes) or 'the same sizes'}"


class SlotOperation(WrongOperation):
    """A call that belongs to a pass of slots, made at the wrong time."""

    kinds = ("slots",)
    fields: ClassVar[Mapping[str, Schema]] = {
        "slot": integer(-8, 16),
        "count": integer(-8, MAX_LENGTH),
    }

    def why_illegal_here(self, op: Op, model: SlotsModel) -> str | None:
        slots, number = model.slots.slots, op["slot"]
        if number not in range(len(slots)) or not slots[number].in_use:
            return None
        if op["count"] not in self.list_allowed(model, number):
            return None
        return "it is allowed now, and part of a pass"

    def list_allowed(self, model: SlotsModel, number: int) -> Sequence[int]:
        """Lists the values of `count` that are allowed for a slot in use."""
        raise NotImplementedError

    def run_reference(self, op: Op, model: SlotsModel) -> Answer:
        call = getattr(model.slots, self.name)
        return ask(lambda: call(op["slot"], op["count"]) and None)

    def run_backend(self, op: Op, system: PrefixSystem, model: SlotsModel) -> Answer:
        call = getattr(system.cache, self.name)
        return system.ask(lambda: call(op["slot"], op["count"]) and None)


class Reserve(SlotOperation):
    """Reserves tokens of a slot at the wrong time.

    Answer: `error`.
    """

    name, text = "reserve", "reserve {count} tokens in slot {slot}"
    effect = Effect.CONTROL
    answer = USAGE

    def list_allowed(self, model: SlotsModel, number: int) -> Sequence[int]:
        return range(1, model.count_next(number) + 1)


class Commit(SlotOperation):
    """Commits tokens of a slot at the wrong time.

    Answer: `error`.
    """

    name, text = "commit", "commit {count} tokens in slot {slot}"
    effect = Effect.CONTROL
    answer = USAGE

    def list_allowed(self, model: SlotsModel, number: int) -> Sequence[int]:
        return [model.slots.slots[number].reserved]


OPERATIONS = index(
    Begin(),
    Feed(),
    Close(),
    Cancel(),
    Break(),
    Overrun(),
    Refuse(),
    Checkpoint(),
    Count(),
    Statistics(),
    Limit(),
    Free(),
    Open(),
    Reserve(),
    Commit(),
)
"""All operations by name, in the order in which they are drawn."""
