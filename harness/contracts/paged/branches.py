"""Operations that release slots, drop blocks, and fork or rewind requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.driver.messages import Positive
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask
from lockstep.harness.contracts.paged.base import (
    LETTERS,
    REQUEST,
    TOKENS,
    Fields,
    OnRequest,
    PagedOperation,
    chosen,
    draw_tokens,
    find_free_name,
    leave,
)
from lockstep.harness.contracts.paged.model import MOST_LENGTH, MOST_REQUESTS, PagedModel
from lockstep.harness.core.document import Schema, integer
from lockstep.reference.paged import Request


class LettingGo(OnRequest):
    """Releases the slots of a request.

    Tokens that the request has not computed are never hit. A transfer continues without
    the request.
    """

    def prefer(self, names: Sequence[str], model: PagedModel) -> Sequence[str]:
        """Returns the requests in launched steps, or else the requests whose blocks a
        transfer still needs or has filled.

        Returns all `names` if there are none, or if `goes_far` is False.
        """
        launched = [name for name in names if model.cache.requests[name].launched]
        owners = set(map(model.find_owner, model.transfers))
        loaded = {name for name in names if "loaded" in model.past[name]}
        preferred = [name for name in names if name in owners | loaded]
        return launched or (preferred if model.goes_far and preferred else names)

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        if request.scheduled and model.leaning - {op["request"]}:
            return "another request of the step may read what this one computes"
        return None


class Preempt(LettingGo):
    """Releases all slots of a request, which then waits without drafts.

    Answer: `{}` or `error`.
    """

    name, weight = "preempt", 2
    effect = Effect.REMOVES
    answer = schemas.NOTHING_OR_USAGE
    text = "preempt {request}"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        reason = super().why_illegal_here(op, model, request)
        return reason or (None if request.is_held else "it holds no slots")

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        return model.preempt(op["request"])


class Free(LettingGo):
    """Ends a request; if `reuse` is false, its computed tokens must not be reused.

    Answer: `{}` or `error`.
    """

    name, weight = "free", 4
    effect = Effect.REMOVES
    answer = schemas.NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "reuse": {"type": "boolean", "default": True},
    }

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        kept = 8 if model.is_bound else 2 if model.goes_far else 3
        return {"reuse": source.below(kept) > 0}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name = op["request"]
        ended = model.cache.requests.get(name)
        model.note_letting_go(name, op["reuse"])
        answer = ask(lambda: model.cache.free(name, op["reuse"]))
        if ended is not None:
            model.told.append((ended.space, ended.tokens))
            model.leaning.discard(name)
            model.happened.add("freed" if op["reuse"] else "withdrawn")
        return answer

    def describe(self, op: Op) -> str:
        suffix = "" if op["reuse"] else "; nobody may hit what it computed"
        return f"free {op['request']}{suffix}"


class Fork(OnRequest):
    """Opens a request `target` with the computed tokens of `source`, and then `tokens`.
    Drafts count only if they form a chain.

    Answer: `ok`: false if there are too few blocks.
    """

    name, weight, result = "fork", 3, "ok"
    effect = Effect.MOVES
    answer = chosen(ok=schemas.BOOLEAN)
    text = "fork {source} into {target}, which goes on with {tokens}"
    fields: ClassVar[Mapping[str, Schema]] = {
        "source": REQUEST,
        "target": REQUEST,
        "tokens": TOKENS,
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["source"])
        if len(model.cache.requests) >= MOST_REQUESTS:
            return f"there are {MOST_REQUESTS} requests already"
        return self.why_illegal_here(op, model, request) if request else None

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        return model.why_too_long(len(request.chain) + len(op.get("tokens", [1])))

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not request.computed or request.end > request.computed

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        if len(model.cache.requests) >= MOST_REQUESTS:
            return None
        fields = super().draw_fields(source, model)
        if fields is None:
            return None
        origin = model.cache.requests[fields["request"]]
        room = model.config["max_length"] - len(origin.chain)
        tokens = draw_tokens(source, min(room, source.pick((1, 2, 3))))
        target = find_free_name(model)
        return {"source": fields["request"], "target": target, "tokens": tokens}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        requests = model.cache.requests
        if not requests or len(requests) >= MOST_REQUESTS:
            return None
        free = [item for item in LETTERS if item not in requests]
        wrong = [name for name, item in requests.items() if self.is_misuse(model, item)]
        legal = [name for name in requests if name not in wrong]
        names = [*wrong, free[0]] if source.below(2) or not legal else legal
        name = source.pick(names)
        target, tokens = free[1], [1]
        if name in legal and source.below(2):
            target = name  # the name is in use
        elif name in legal:
            tokens = []
        return {"op": self.name, "source": name, "target": target, "tokens": tokens}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        source, target, tokens = op["source"], op["target"], op["tokens"]
        request = model.cache.requests.get(source)
        invalid = request is None or self.is_misuse(model, request)
        if invalid or target in model.cache.requests or not tokens:
            return ask(lambda: model.cache.fork(source, target, tokens))
        return {"ok": leave([True] if self.has_room(op, model) else [False, True])}

    def has_room(self, op: Op, model: PagedModel) -> bool:
        """Tells whether the backend must have blocks to copy all slots of the source."""
        holding = [name for name, item in model.cache.requests.items() if item.is_held]
        needed = sum(
            model.count_blocks(name, *model.spans[name]) + len(model.cache.groups)
            for name in [*holding, op["source"]]
        )
        blocks: int = model.config["blocks"]
        return needed <= blocks

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if not observed.get("ok"):
            return
        source, target = op["source"], op["target"]
        model.cache.fork(source, target, op["tokens"])
        model.name_contents(target, model.cache.requests[target].computed)
        model.spans[target] = model.spans[source]
        model.past[target] = {"forked"}
        model.sampled.pop(target, None)
        model.past[source].add("forked")

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class Rewind(OnRequest):
    """Truncates a request to its first `to` tokens, then appends `tokens`. Drafts count
    only if they form a chain.

    Answer: `ok`: false if a group has dropped the content that is needed there.
    """

    name, weight, result = "rewind", 2, "ok"
    effect = Effect.REMOVES
    answer = chosen(ok=schemas.BOOLEAN)
    filling: ClassVar[Mapping[str, Any]] = {"to": 1, "tokens": [1]}
    text = "rewind {request} to {to} tokens, and go on with {tokens}"
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "to": integer(0, MOST_LENGTH),
        "tokens": TOKENS,
    }

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        if op.get("to", 0) + len(op.get("tokens", [1])) > model.config["max_length"]:
            return "it would be too long"
        return None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return request.end > request.computed or not request.computed

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        end = len(request.chain)
        to = source.pick((end, end - 1, end // 2, end - 2, end - 3))
        to = min(max(1, to), model.config["max_length"] - 1)
        room = model.config["max_length"] - to
        return {"to": to, "tokens": draw_tokens(source, min(room, 1 + source.below(3)))}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws a call for an invalid request, or for a valid one with an invalid
        `to` or without tokens."""
        op = self.draw(source, model)
        if op is None or source.below(2):
            return super().draw_misuse(source, model)
        ahead = len(model.cache.requests[op["request"]].chain) + 1
        wrong: Sequence[Mapping[str, Any]]
        wrong = ({"to": 0}, {"to": ahead, "tokens": [1]}, {"tokens": []})
        return {**op, **source.pick(wrong)}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, to, tokens = op["request"], op["to"], op["tokens"]
        request = model.cache.requests.get(name)
        end = len(request.chain) if request and not self.is_misuse(model, request) else 0
        if not tokens or not 0 < to <= end:
            return ask(lambda: model.cache.rewind(name, to, tokens))
        full = all(group.type == "full" for group in model.cache.groups)
        is_there = full or to == end
        return {"ok": leave([True] if is_there else [True, False])}

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if observed.get("ok"):
            name, to = op["request"], op["to"]
            model.cache.rewind(name, to, op["tokens"])
            model.name_contents(name, to)
            model.spans[name] = min(to, model.spans[name][0]), to
            model.sampled.pop(name, None)
            model.past[name].add("rewound")

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class Evict(PagedOperation):
    """Drops up to `count` blocks that can be hit and that no request holds.

    Answer: `evicted`: the number of dropped blocks.
    """

    name, weight, result = "evict", 2, "evicted"
    effect = Effect.REMOVES
    messages = {"evict": ({"count": Positive}, {"evicted": int})}
    answer = schemas.record(evicted=schemas.record(between=schemas.PAIR))
    has_misuse = False
    text = "evict up to {count} blocks"
    fields: ClassVar[Mapping[str, Schema]] = {"count": integer(1, 256)}

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        if model.offloaded and source.below(4):
            return {"count": 256}  # all offloaded content must then be loaded again
        return {"count": source.pick((1, 2, 4, 256))}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        model.happened.add("evicted")
        model.away = list(model.offloaded)
        most = op["count"] if model.may_cache() else 0
        return {"evicted": {"between": [0, most]}}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        system.check_evicted(answer.get("evicted"))
        return answer


class Reset(PagedOperation):
    """Drops all content that can be hit.

    Answer: `ok`: false while a request holds slots, a step is unfinished or a transfer is
    in progress; then nothing changes. True is also allowed if no request needs its slots
    (none is scheduled, and no next token attends to an earlier token), and no transfer
    holds blocks.
    """

    name, result, has_misuse = "reset", "ok", False
    effect = Effect.REMOVES
    answer = schemas.record(ok=schemas.left_open(schemas.BOOLEAN))
    text = "reset the prefix cache"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        if not model.cache.is_idle and self.is_possible(model):
            return {"ok": leave([False, True])}
        return {"ok": model.cache.reset()}

    def is_possible(self, model: PagedModel) -> bool:
        copies = any(item.blocks for item in model.transfers.values())
        return model.cache.may_forget() and not copies

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer = super().run_backend(op, system, model)
        if answer.get("ok") and self.is_possible(model):
            system.check_empty()
        return answer

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if observed["ok"]:
            model.happened.add("reset")
            model.cache.forget()
            model.offloaded, model.away, model.withdrawn = [], [], []


class UpdateWeights(PagedOperation):
    """Reports that the weights of the model have changed. Launched steps execute with the
    older weights. Requests keep their K and V. These, and tokens that are being loaded,
    can no longer be hit, nor can tokens that such a request computes before it has
    released all its slots.

    Answer: `{}`.
    """

    name, has_misuse = "update_weights", False
    effect = Effect.REMOVES
    answer = schemas.record()
    text = "the weights have changed"

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        reads = "a request of the step reads what another one of the step computes"
        return reads if model.leaning else None

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        requests = model.cache.requests.values()
        computed = any(item.settled for item in requests)
        is_useful = computed or any(tokens for _, tokens in model.cache.past)
        coming = any(item.settled > item.computed == 0 for item in requests)
        often = 4 if model.is_bound else 3  # more often, there would be few hits
        is_drawn = coming or not source.below(often)
        return {} if is_useful and is_drawn and not model.leaning else None

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        model.update_weights()
        model.happened.add("updated")
        return {}
