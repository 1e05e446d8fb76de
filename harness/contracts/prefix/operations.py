"""The other operations of the prefix contract, and all operations by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Effect,
    Op,
    Source,
    ask,
    index,
)
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.model import (
    CONVERSATIONS,
    PrefixModel,
    PrefixSystem,
)
from lockstep.harness.contracts.prefix.requests import (
    CONTENTS,
    NUMBERS,
    Begin,
    Break,
    Cancel,
    Close,
    Feed,
    Fields,
    Overrun,
    PrefixOperation,
)
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.core.document import DERIVED, MAX_LENGTH, Schema, integer, optional
from lockstep.reference.slots import Slots
from lockstep.reference.trie import Trie


def join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# --- what is stored ---------------------------------------------------------------------


class Refuse(PrefixOperation):
    """Makes the caches under the prefix cache refuse once. In the next `begin`, these
    layers refuse to go back to an earlier offset, or, if `raising` is set, raise an
    error. Under slots, the unified cache refuses its next removal of a tail."""

    name, method = "refuse", None
    effect = Effect.CONTROL
    answer = schemas.NOTHING
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
    """Schedules captures of the next request at these offsets."""

    name, method = "checkpoint", None
    effect = Effect.CONTROL
    answer = schemas.NOTHING
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
    """Counts the stored content.

    Answer: `tokens`: the number of stored tokens; for a trie also `bytes`.
    """

    name, method = "count", "count_tokens"
    effect = Effect.READS
    kinds = CONVERSATIONS
    text = "count what is stored"
    answer = schemas.record(tokens=schemas.NUMBER)

    def get_answer(self, kind: str) -> Schema:
        extra = {"bytes": schemas.NUMBER} if kind == "trie" else {}
        return schemas.extend(self.answer, **extra)


class Statistics(PrefixOperation):
    """Counts all requests so far, and the stored content.

    Answer: `requests`: the number of requests; `hits`: the number of requests that reused
    a token; `asked`: the number of tokens in all requests; `reused`: the number of reused
    tokens; `tokens`: the number of stored tokens, for slots the sum over all slots;
    `bytes`: the stored bytes of a trie, 0 for other kinds.
    """

    name, method = "statistics", "get_statistics"
    effect = Effect.READS
    answer = schemas.record(**dict.fromkeys(STATISTICS, schemas.NUMBER))
    text = "count requests, reused tokens and what is stored"


class Free(PrefixOperation):
    """Drops all content.

    Answer: as for `begin`, without `remaining`.
    """

    name, text = "free", "free everything"
    effect = Effect.REMOVES
    answer = schemas.any_of(schemas.record(**CONTENTS), schemas.USAGE)
    kinds = CONVERSATIONS

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        return None if model.is_open("a") or source.below(2) else {}


class Limit(PrefixOperation):
    """Sets the limit of stored bytes, which applies immediately; null: no limit."""

    name, method = "limit", "set_limit"
    effect = Effect.REMOVES
    answer = schemas.NOTHING_OR_USAGE
    kinds = ("trie",)
    weight = 3
    fields: ClassVar[Mapping[str, Schema]] = {
        "bytes": {**optional(integer(-1, 1 << 40)), DERIVED: True}
    }

    def draw_fields(self, source: Source, model: ConversationModel) -> Fields | None:
        parting_first = any(not older for older in model.list_partings().values())
        few = len(model.list_stored()) < 4 and "refused" not in model.past
        if few and not parting_first and source.below(8):
            return None
        stored = model.describe_store()["bytes"]
        lower = stored - 1
        limits = [lower, stored // 2, None, lower, stored * 5 // 6, stored, 0, None]
        if parting_first and source.below(2):
            limits = [lower, stored * 2 // 3]
        limit = source.pick(limits)
        return {"bytes": limit if limit is None else max(0, limit)}

    def describe_here(self, op: Op) -> str:
        if op["bytes"] is None:
            return "store any number of bytes from now on"
        return f"store at most {op['bytes']} bytes from now on"


# --- mistakes of usage alone ------------------------------------------------------------


class WrongOperation(PrefixOperation):
    """An operation for invalid calls only; it is illegal if a cache could run it."""

    def draw_fields(self, source: Source, model: PrefixModel) -> Fields | None:
        return None


SIZES = ("interval", "context", "keep")


class Open(WrongOperation):
    """Opens a second cache with sizes that must be refused.

    Answer: `error`.
    """

    name, method = "open", None
    effect = Effect.CONTROL
    answer = schemas.USAGE
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
        answer: Answer = system.ask(lambda: system.backend.open(config) and None)
        return answer

    def get_sizes(self, op: Op) -> Config:
        return {name: op[name] for name in SIZES if op[name] is not None}

    def describe_here(self, op: Op) -> str:
        sizes = [f"{name} {size}" for name, size in self.get_sizes(op).items()]
        return f"open a cache with {', '.join(sizes) or 'the same sizes'}"


class SlotOperation(WrongOperation):
    """A call that belongs to a pass of slots, and is made at a wrong time."""

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
        answer: Answer = system.ask(lambda: call(op["slot"], op["count"]) and None)
        return answer


class Reserve(SlotOperation):
    """Reserves tokens in a slot at a wrong time.

    Answer: `error`.
    """

    name, text = "reserve", "reserve {count} tokens in slot {slot}"
    effect = Effect.CONTROL
    answer = schemas.USAGE

    def list_allowed(self, model: SlotsModel, number: int) -> Sequence[int]:
        return range(1, model.count_next(number) + 1)


class Commit(SlotOperation):
    """Commits tokens in a slot at a wrong time.

    Answer: `error`.
    """

    name, text = "commit", "commit {count} tokens in slot {slot}"
    effect = Effect.CONTROL
    answer = schemas.USAGE

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
