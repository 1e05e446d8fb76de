"""Operations on transfers, which copy blocks to host memory and back, and operations that
save all content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.driver.messages import NUMBER_PAIRS, SAVED, Size
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.answers import read_list
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask
from lockstep.harness.contracts.paged.base import (
    TRANSFER,
    TRANSFERRED,
    Begin,
    Fields,
    PagedOperation,
    chosen,
    find_new,
    leave,
    why_none,
)
from lockstep.harness.contracts.paged.model import MOST_BLOCKS, PagedModel
from lockstep.harness.core.document import Schema, integer, optional
from lockstep.reference.paged import Content, Request


def list_waiting(
    model: PagedModel, contents: Sequence[Content], can_hit: bool = True
) -> list[str]:
    """Lists the waiting requests that begin with the same tokens as one of `contents`.

    As many tokens are compared as fill whole blocks of all groups; see `whole`.

    Args:
        model: the reference.
        contents: the contents to compare with.
        can_hit: True to list the requests with a hit; False to list the requests without
            a hit.
    """
    return [
        name
        for name, item in model.cache.requests.items()
        if not item.is_held
        and model.whole + model.cache.dropped < len(item.tokens)
        and model.is_of(name, model.whole, contents)
        and model.reads(model.list_hits(name)[0]) == can_hit
    ]


def list_away(model: PagedModel) -> list[str]:
    """Lists the requests to load.

    The first tokens of such a request are no longer on the device, or must not be reused.
    """
    away = [name for name in list_waiting(model, model.away) if not model.is_live(name)]
    return away or list_waiting(model, model.withdrawn, can_hit=False)


def propose_next(model: PagedModel) -> Sequence[str]:
    """Lists operations that lead to a `load`, that use loaded content, or that reassign
    blocks which a transfer still needs."""
    if model.last == "save":
        return ("restore",)
    requests = model.cache.requests
    holding = [item for item in requests.values() if item.is_held]
    if any(item.request not in holding for item in model.transfers.values()):
        return ("schedule", "run", "open", "evict", "landed", "landed", "failed")
    loaded = [item for name, item in requests.items() if "loaded" in model.past[name]]
    if any(item.scheduled for item in loaded):
        return ("run",)
    if any(not model.cache.has_sampled(item) for item in loaded):
        return ("schedule",)
    if model.transfers:
        awaited = any(item.awaited for item in holding)
        alternatives = ("offload",) if list_new(model) else ("open", "schedule", "run")
        landed = ("landed",) * (8 if awaited else 2)
        updates = ("update_weights",) * awaited
        return (*landed, *updates, "failed", "free", "preempt", *alternatives)
    if away := list_away(model):
        # Others first overwrite the blocks that still have the content.
        others = any(
            name not in away and not item.is_held for name, item in requests.items()
        )
        if model.flights:  # a load must not get blocks that a step has still to write
            launched = any(item.launched for item in requests.values())
            return ("preempt", "free", "free") if launched else ("load",) * 8
        return ("run",) if model.cache.step else ("load", *("schedule",) * others)
    waiting = list_waiting(model, model.offloaded)
    if waiting:
        live = any(model.is_live(name) for name in waiting)
        return ("free", "preempt") if live else ("evict",)
    if list_new(model):
        return ("offload",)
    if model.withdrawn:
        return ("open",)
    if model.offloaded:
        onward = ("preempt", "free", "open", "open")
        return ("save", "reset", *onward) if model.cache.is_idle else onward
    if model.cache.step:
        return ("run", "run", "schedule")
    ended = all(map(model.cache.has_sampled, requests.values()))
    return ("open",) if ended else ("schedule",)


def list_new(model: PagedModel) -> list[str]:
    """Lists the requests that have new content to offload."""
    requests = model.cache.requests.items()
    return [
        name
        for name, item in requests
        if item.computed >= model.whole
        and not model.is_of(name, model.whole, model.offloaded)
    ]


class Offload(Begin):
    """Begins a transfer that copies the computed whole blocks of a request to host
    memory; the request continues as before.

    Answer: `{}` or `error`.
    """

    name = "offload"
    effect = Effect.MOVES
    messages = {"offload": (TRANSFERRED, {"copies": NUMBER_PAIRS})}
    answer = schemas.NOTHING_OR_USAGE
    text = "offload {request} in transfer {transfer}"

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not request.computed

    def list_preferred(self, model: PagedModel) -> Sequence[str]:
        requests = model.cache.requests.items()
        launched = [name for name, item in requests if item.launched and item.computed]
        return launched or list_new(model)

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        return ask(lambda: model.cache.offload(op["request"], op["transfer"]))

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if "error" not in answer:
            answer = system.begin(op, answer.get("result"), leaves=True)
        return answer

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" not in observed:
            request = model.cache.requests[op["request"]]
            most = model.count_whole(request.computed)
            model.begin_transfer(op, observed.get("copied", most))


class Load(Begin):
    """Gives slots to the first tokens of a waiting request, and begins a transfer that
    copies their content from host memory. Until the transfer ends, all operations on the
    request except preempt and free are refused.

    Answer: `loaded`: the number of computed tokens after the transfer has landed; null if
    there is nothing to copy, or if there are too few blocks.
    """

    name, result = "load", "loaded"
    effect = Effect.MOVES
    messages = {"load": (TRANSFERRED, {"loaded": int | None, "copies": NUMBER_PAIRS})}
    answer = chosen(loaded=schemas.NUMBER_OR_NONE)
    text = "load the beginning of {request} in transfer {transfer}"

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return request.is_held

    def list_preferred(self, model: PagedModel) -> Sequence[str]:
        return list_away(model)

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        """Returns the allowed answers.

        Null is always allowed: the content may be on the device already, or there may be
        too few free blocks.
        """
        name, transfer = op["request"], op["transfer"]
        if self.breaks_usage(op, model):
            return ask(lambda: model.cache.load(name, transfer, 0))
        ends = [hit for hit in model.list_hits(name) if hit]
        likely = [end for end in ends if model.is_of(name, end, model.away)][:1]
        return {"loaded": leave(list(dict.fromkeys([*likely, None, *ends])))}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if answer.get("loaded") is None:
            return answer
        end, copies = read_list(answer["loaded"], "load", 2)
        return {"loaded": end, **system.begin(op, copies, leaves=False)}

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        name, end = op["request"], observed.get("loaded")
        model.withdrawn = []
        if end is None:
            model.away = []  # the device has all content, or too few free blocks
            return
        model.cache.load(name, op["transfer"], end)
        model.note_leaning(name, end)
        model.spans[name] = 0, model.cache.count_admitted(name, end)
        model.begin_transfer(op, observed.get("copied", model.count_blocks(name, 0, end)))


class End(PagedOperation):
    """Ends a transfer."""

    fields: ClassVar[Mapping[str, Schema]] = {"transfer": TRANSFER}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        return why_none(model, "host", "remote")

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        names = list(model.cache.transfers)
        return {"transfer": source.pick(names)} if names else None

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        return {"op": self.name, "transfer": find_new(model)}


class Landed(End):
    """Reports that all blocks of a transfer have been copied; a request that waited for
    the load continues after the loaded tokens.

    Answer: `{}` or `error`.
    """

    name, weight = "landed", 3
    effect = Effect.ADDS
    answer = schemas.NOTHING_OR_USAGE
    text = "transfer {transfer} has landed"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        transfer = op["transfer"]
        name, model.arrived = model.find_loader(transfer), None
        if name is not None:
            request = model.cache.requests[name]
            is_here = request.present == request.awaited
            # Another cache sends only the last of several states, and the last window.
            first = 0 if is_here else request.awaited - 1
            model.arrived = name, first, request.awaited
            model.past[name].add("loaded")
        answer = ask(lambda: model.cache.landed(transfer))
        if "error" not in answer:
            model.end_transfer(transfer, has_landed=True)
        return answer

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if "error" not in answer:
            system.land(op, model)
            if model.arrived is not None:
                system.check_published([model.arrived], model)
        return answer


class Failed(End):
    """Reports that a transfer has ended after `arrived` blocks; the last block never
    arrives. After a load, the request keeps tokens that were already on the device or
    have arrived, or it releases all slots.

    Answer: `kept`: the number of tokens that the request keeps after a load; with 0, it
    waits and holds no slots.
    """

    name, result = "failed", "kept"
    effect = Effect.REMOVES
    messages = {"failed": ({"transfer": str, "arrived": Size}, {"kept": int})}
    answer = chosen(kept=schemas.NUMBER)
    fields: ClassVar[Mapping[str, Schema]] = {
        **End.fields,
        "arrived": {**integer(0, 64), "default": 0},
    }

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        fields = super().draw_fields(source, model)
        return fields and {**fields, "arrived": source.pick((0, 1, 2, 4))}

    def describe(self, op: Op) -> str:
        return f"transfer {op['transfer']} has failed after {op['arrived']} copies"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        transfer = op["transfer"]
        if transfer not in model.cache.transfers:
            return ask(lambda: model.cache.failed(transfer))
        name = model.find_loader(transfer)
        if name is None:
            return {"kept": leave([0])}
        request = model.cache.requests[name]
        hits = [hit for hit in model.list_hits(name) if 0 < hit <= request.awaited]
        if request.present < request.awaited or request.is_stale:
            # What has arrived counts, too, and what can be hit no more.
            hits = [*range(request.awaited, 0, -1)]
        return {"kept": leave([0, *hits])}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.fail(op, self.fields, self.result, model)
        return answer

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" in observed:
            return
        transfer, count = op["transfer"], observed["kept"]
        name = model.find_loader(transfer)
        model.cache.failed(transfer, count)
        model.end_transfer(transfer, has_landed=False)
        model.happened.add("failed")
        if name is not None:
            model.leaning.discard(name)
            model.past[name] |= {"loaded"} if count else set()


class Save(PagedOperation):
    """Stores all content that can be hit.

    Answer: `saved`: false while a request holds slots or a transfer is in progress; then
    nothing is stored.
    """

    name, has_misuse = "save", False
    effect = Effect.MOVES
    messages = {"save": ({}, {"saved": int | None})}
    answer = schemas.record(saved=schemas.BOOLEAN)
    text = "save all that can be hit"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        saved = model.cache.save()
        if saved is not None:
            model.saved = saved, tuple(model.offloaded)
        return {"saved": saved is not None}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if "result" in answer:
            system.saved = answer["result"], system.contents.clone()
        return {"saved": "result" in answer}


class Restore(PagedOperation):
    """Opens a new cache with the content that was stored last with the present weights;
    all requests end. If `blocks` is set, instead restores the stored content of an empty
    cache with this number of blocks. This must be refused, and changes nothing.

    Answer: `{}` or `error`.
    """

    name = "restore"
    effect = Effect.REMOVES | Effect.MOVES
    messages = {"restore": (SAVED, {})}
    answer = schemas.NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {"blocks": optional(integer(1, MOST_BLOCKS))}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        if op.get("blocks") == model.config["blocks"]:
            return "the cache has as many blocks"
        return None if model.saved else "nothing was saved with these weights"

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        return {"op": self.name, "blocks": model.config["blocks"] + source.pick((1, 2))}

    def describe(self, op: Op) -> str:
        blocks = op.get("blocks")
        saved = f"a cache with {blocks} blocks has" if blocks else "was"
        return f"open another cache with what {saved} saved"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        if op.get("blocks"):
            return {"error": "usage"}
        model.restore()
        model.happened.add("restored")
        return {}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.restore(op.get("blocks"))
        return answer
