"""Operations that send the content of a request to another cache, or receive it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.answers import read_list
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask
from lockstep.harness.contracts.paged.base import (
    TRANSFERRED,
    Begin,
    Fields,
    chosen,
    leave,
)
from lockstep.harness.contracts.paged.model import MOST_LENGTH, PagedModel
from lockstep.harness.core.document import Schema, integer
from lockstep.reference.paged import Request


class Send(Begin):
    """Begins to send the content of the computed tokens, without drafts, to another
    cache. The cache returns the blocks to send. It may leave out a block whose content
    has been sent for this request before.

    Answer: `{}` or `error`.
    """

    name, memory, weight = "send", "remote", 5
    effect = Effect.READS
    messages = {"send": (TRANSFERRED, {"blocks": list[int]})}
    answer = schemas.NOTHING_OR_USAGE
    text = "send {request} to another cache in transfer {transfer}"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        is_busy = request.launched + request.scheduled > 0
        return "its step has not finished" if is_busy else None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not request.computed

    def list_preferred(self, model: PagedModel) -> Sequence[str]:
        requests = model.cache.requests.items()
        return [name for name, item in requests if self.suits(model, name, item)]

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        return ask(lambda: model.cache.send(op["request"], op["transfer"]))

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if "error" in answer:
            return answer
        answered: Answer = system.send(op, answer.get("result"), model)
        return answered

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" not in observed:
            model.begin_transfer(op, observed.get("copied", 0))
            model.past[op["request"]].add("sent")


class Receive(Begin):
    """Gives a waiting request slots for its first `end` tokens, whose content another
    cache sends. The request first reuses a prefix. Until the transfer has landed, no
    request may hit the other tokens.

    Answer: `received`: the number of reused tokens; null if there are too few blocks, or
    if the request can hit all these tokens.
    """

    name, memory, result, weight = "receive", "remote", "received", 5
    effect = Effect.MOVES
    fields: ClassVar[Mapping[str, Schema]] = {
        **Begin.fields,
        "end": integer(1, MOST_LENGTH),
    }
    filling: ClassVar[Mapping[str, Any]] = {"end": 1}
    messages = {
        "receive": (
            {**TRANSFERRED, "end": int},
            {"received": int | None, "blocks": list[int] | None},
        )
    }
    answer = chosen(received=schemas.NUMBER_OR_NONE)
    text = "receive the first {end} tokens of {request} in transfer {transfer}"

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["request"])
        if request and not request.is_held and not self.list_starts(op, model):
            return "the request can hit these tokens, or has no token after them"
        return super().why_illegal(op, model)

    def list_starts(self, op: Op, model: PagedModel) -> list[int]:
        """Lists the numbers of tokens that the request may reuse, the largest first."""
        hits = model.list_hits(op["request"])
        is_short = op["end"] >= len(model.cache.requests[op["request"]].tokens)
        return [] if is_short else [hit for hit in hits if hit < op["end"]]

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return request.is_held

    def list_preferred(self, model: PagedModel) -> Sequence[str]:
        requests = model.cache.requests.items()
        return [
            name
            for name, item in requests
            if not item.is_held and model.list_hits(name)[0] + 1 < len(item.tokens)
        ]

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        fields = super().draw_fields(source, model)
        if fields is None:
            return None
        last = len(model.cache.requests[fields["request"]].tokens) - 1
        ends = last, last, last // model.whole * model.whole, source.between(1, last or 1)
        op = {**fields, "end": max(1, source.pick(ends))}
        return None if self.why_illegal(op, model) else op

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, transfer, end = op["request"], op["transfer"], op["end"]
        if self.breaks_usage(op, model):
            return ask(lambda: model.cache.receive(name, transfer, end))
        starts = self.list_starts(op, model)
        # It need not receive what it may hit, or what is computed in this step.
        waits = end <= model.list_hits(name)[0] or model.may_put_off(name, 0, MOST_LENGTH)
        is_due = model.must_have_room(name, end) and not waits
        return {"received": leave([*starts, *([] if is_due else [None])])}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if answer.get("received") is None:
            return answer
        start, blocks = read_list(answer["received"], "receive", 2)
        return {"received": start, **system.receive(op, blocks, model)}

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        name, start = op["request"], observed.get("received")
        if start is None:
            return
        model.cache.receive(name, op["transfer"], op["end"], start)
        model.note_leaning(name, start)
        model.spans[name] = 0, model.cache.count_admitted(name, op["end"])
        model.begin_transfer(op, observed.get("copied", 0))
