"""The operations of the paged contract: requests, and the steps of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar

from lockstep.harness.contracts.answer_schemas import (
    NOTHING_OR_USAGE,
    NUMBER,
    NUMBER_OR_NONE,
    TAGS,
    USAGE,
    any_of,
    left_open,
    list_of,
    record,
)
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask, index
from lockstep.harness.contracts.paged.base import (
    LETTERS,
    NAMESPACE,
    REQUEST,
    TOKEN,
    TOKENS,
    Fields,
    OnRequest,
    PagedOperation,
    draw_tokens,
    leave,
)
from lockstep.harness.contracts.paged.branches import (
    Evict,
    Fork,
    Free,
    Preempt,
    Reset,
    Rewind,
)
from lockstep.harness.contracts.paged.model import (
    MOST_LENGTH,
    MOST_REQUESTS,
    PagedModel,
)
from lockstep.harness.contracts.paged.transfers import (
    Failed,
    Landed,
    Load,
    Offload,
    Restore,
    Save,
)
from lockstep.harness.core.document import Schema, integer
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Request


class Open(PagedOperation):
    """Opens a request, which waits and holds nothing.

    Answer: `{}` or `error`.
    """

    name, weight = "open", 5
    effect = Effect.ADDS
    messages = {
        "open_request": (
            {"request": str, "tokens": list[int], "namespace": str | None},
            {},
        )
    }
    answer = NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "tokens": TOKENS,
        "namespace": NAMESPACE,
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        exists = op["request"] in model.cache.requests
        if len(model.cache.requests) >= MOST_REQUESTS and not exists:
            return f"there are {MOST_REQUESTS} requests already"
        return None

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        free = [name for name in LETTERS if name not in model.cache.requests]
        contents: Sequence[tuple[str | None, Sequence[int]]]
        contents = self.list_contents(model)
        namespace = None if source.below(2 if model.goes_far else 4) else "x"
        tokens: Sequence[int] = ()
        away = model.withdrawn or model.offloaded
        if model.goes_far and away and not model.transfers and source.below(2):
            contents = away
        if contents and source.below(4):
            namespace, tokens = source.pick(contents)
            if not source.below(3):
                tokens = tokens[: source.between(0, len(tokens))]
            if not source.below(8):
                namespace = "x" if namespace is None else None
        appended = draw_tokens(source, source.pick((1, 0, 2, 3, 5, 8, 4)))
        drawn = [*tokens, *appended] or [1]
        del drawn[max(1, model.config["max_length"] - source.below(4)) :]
        while model.why_too_long(len(drawn)):
            drawn.pop()
        return {"request": free[0], "tokens": drawn, "namespace": namespace}

    def describe(self, op: Op) -> str:
        space = f" in namespace {op['namespace']!r}" if op["namespace"] else ""
        return f"open request {op['request']} with tokens {op['tokens']}{space}"

    def list_contents(self, model: PagedModel) -> list[tuple[str | None, Sequence[int]]]:
        """Lists the tokens that requests have, and those that the last ones had."""
        live = [(item.namespace, item.tokens) for item in model.cache.requests.values()]
        return [*model.told[-4:], *live]

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        names = list(model.cache.requests)
        if names and source.below(2):
            return {"op": self.name, "request": source.pick(names), "tokens": [1]}
        free = next(item for item in LETTERS if item not in names)
        length = next(number for number in count(1) if model.why_too_long(number))
        too_long = [1] * length
        wrong: Sequence[tuple[list[int], str | None]]
        wrong = (([], None), (too_long, None), ([1], ""))
        tokens, namespace = source.pick(wrong)
        fields = {"request": free, "tokens": tokens, "namespace": namespace}
        return {"op": self.name, **fields}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, namespace = op["request"], op["namespace"]
        if namespace == "" or model.why_too_long(len(op["tokens"])):
            return {"error": "usage"}
        answer = ask(lambda: model.cache.open(name, op["tokens"], namespace))
        if "error" not in answer:
            model.past[name] = set()
            model.name_contents(name, 0)
            if namespace is not None:
                model.happened.add("namespaces")
        return answer

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class GoingOn(OnRequest):
    """A step of a request, or what follows it."""

    def prefer(self, names: Sequence[str], model: PagedModel) -> Sequence[str]:
        """Those with drafts, which are kept or rejected two operations later."""
        return [name for name in names if model.cache.requests[name].drafts] or names


class Match(OnRequest):
    """Asks how many tokens a waiting request could reuse now. Nothing changes.

    Answer: `hit`, less than its length.
    """

    name = "match"
    effect = Effect.READS
    answer = any_of(record(hit=left_open(NUMBER)), USAGE)
    text = "how many tokens of {request} can be hit?"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        return "it holds slots" if request.is_held else None

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        if op["request"] not in model.cache.requests:
            return {"error": "usage"}
        return {"hit": leave(model.list_hits(op["request"]))}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.watch_hit(op, model)
        return answer


class Schedule(GoingOn):
    """Gives slots to the next tokens and drafts of a request, to all if there are fewer;
    one that waits first reuses a beginning.

    Answer: `start`, the position of the first one; null if there is no room, and nothing
    changes.
    """

    name, weight = "schedule", 12
    effect = Effect.MOVES
    answer = any_of(record(start=left_open(NUMBER_OR_NONE)), USAGE)
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "count": {**integer(1, MOST_LENGTH), "default": MOST_LENGTH},
    }

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        taken = request.scheduled > 0 or request.awaited > 0
        return taken or model.cache.has_sampled(request)

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        remaining = len(request.known) - request.computed
        edges = [remaining, 1, remaining, 2]
        for group in model.config["groups"]:
            block = group["block"]
            edges += [block - request.computed % block, block + 1, 2 * block]
        if request.drafts and source.below(2):
            edges = [remaining]
        return {"count": max(1, min(source.pick(edges), remaining))}

    def get_anything(self) -> Mapping[str, Any]:
        return {"count": 1}

    def describe(self, op: Op) -> str:
        count = "all" if op["count"] == MOST_LENGTH else f"up to {op['count']}"
        return f"schedule {count} tokens of {op['request']}"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name = op["request"]
        request = model.cache.requests.get(name)
        if request is None or self.is_misuse(model, request):
            return ask(lambda: model.cache.schedule(name, op["count"]))
        starts = self.list_starts(op, model)
        if not model.must_have_room(name, self.get_end(op, model, starts)):
            return {"start": leave([None, *starts])}
        if self.may_wait(op, model, starts):
            return {"start": leave([*starts, None])}
        return {"start": leave(starts)}

    def list_starts(self, op: Op, model: PagedModel) -> list[int]:
        """Lists where the step may begin, the last place first."""
        request = model.cache.requests[op["request"]]
        is_held = request.is_held
        return [request.computed] if is_held else model.list_hits(op["request"])

    def get_end(self, op: Op, model: PagedModel, starts: Sequence[int]) -> int:
        """Returns where the step ends at most."""
        exists = len(model.cache.requests[op["request"]].known)
        return min(exists, starts[0] + int(op["count"]))

    def may_wait(self, op: Op, model: PagedModel, starts: Sequence[int]) -> bool:
        return any(model.may_put_off(op["request"], item, op["count"]) for item in starts)

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.watch_hit(op, model)
        if "error" not in answer and answer.get("start") is None:
            name, starts = op["request"], self.list_starts(op, model)
            if not self.may_wait(op, model, starts):
                system.check_refusal(name, self.get_end(op, model, starts), model)
        return answer

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" in observed:
            return
        name, start = op["request"], observed["start"]
        if start is None:
            model.happened.add("no-room")
            return
        request = model.cache.requests[name]
        is_held = (
            model.spans[name][1] if request.is_held else 0
        )  # rejected drafts included
        if not request.is_held:
            model.sampled.pop(name, None)
            self.note_hit(name, start, model)
        whole = min(op["count"], len(request.known) - start)
        count: Any = observed.get("count", whole)
        if not (1 if model.config["aligned"] else whole) <= count <= whole:
            raise Broken("result", f"took {count} tokens; {whole} were asked for")
        model.cache.schedule(name, count, 0 if request.is_held else start)
        model.spans[name] = start, max(is_held, request.end)

    def note_hit(self, name: str, hit: int, model: PagedModel) -> None:
        model.past[name] |= {"hit"} if hit else {"missed"}
        groups = model.config["groups"]
        if any(hit % item["block"] for item in groups if item["type"] != "state"):
            model.past[name].add("partial-hit")
        model.note_leaning(name, hit)


class Run(PagedOperation):
    """Computes the step: each layer writes all new positions, then reads.

    Answer: `caches`: for each request of the step, in order, for each group: `first`,
    the oldest position that its tokens attend to, and `slots`, the tags from there on;
    of a state group `state`, the tag of the last token that the state has read before
    the step, if there is one.
    """

    name, weight = "run", 8
    effect = Effect.ADDS
    messages = {"run": ({}, {})}
    answer = record(caches=list_of(record(first=NUMBER, slots=TAGS), record(state=TAGS)))
    writes, has_misuse = True, False
    text = "run the step"

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        return None if model.cache.step else "the step is empty"

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {} if model.cache.step else None

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        """Says what each request reads: of a state group the state before its tokens, of
        others all that some token of it attends to."""
        answers: list[Answer] = []
        model.ran = []
        for name in model.cache.step:
            request = model.cache.requests[name]
            start, end = request.computed, request.end
            model.ran.append((name, start, end))
            for group in model.cache.groups:
                if group.type == "state":
                    tags = model.list_tags(request, max(0, start - 1), start)
                    answers.append({"state": tags})
                else:
                    first = group.first(start)
                    tags = model.list_tags(request, first, end)
                    answers.append({"first": first, "slots": tags})
        model.cache.run()
        model.leaning.clear()
        return {"caches": answers}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.run(model.ran, model)
        system.check_published(model.ran, model)
        return answer


class Accept(GoingOn):
    """Goes on behind the last computed token: keeps `kept` drafts, appends a token,
    takes new drafts.

    Answer: `{}` or `error`.
    """

    name, weight = "accept", 12
    effect = Effect.ADDS
    messages = {
        "accept": ({"request": str, "kept": int, "sampled": int, "drafts": list[int]}, {})
    }
    answer = NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "sampled": TOKEN,
        "kept": {**integer(0, 8), "default": 0},
        "drafts": {"type": "array", "items": TOKEN, "maxItems": 8, "default": []},
    }

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        drafts = len(op.get("drafts", ()))
        if drafts > model.config["lookahead"]:
            return "these are more drafts than the lookahead"
        length = len(request.tokens) + min(op.get("kept", 0), len(request.drafts))
        if length + 1 + drafts > model.config["max_length"]:
            return "it would be too long"
        return None

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        drafted = len(request.drafts)
        count_kept = source.pick((0, drafted, source.between(0, drafted)))
        room = model.config["max_length"] - len(request.tokens) - count_kept - 1
        most = min(model.config["lookahead"], room)
        count = source.pick((0, most, most, most // 2)) if most > 0 else 0
        drafts = draw_tokens(source, count)
        [sampled] = draw_tokens(source, 1)
        return {"sampled": sampled, "kept": count_kept, "drafts": drafts}

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not model.cache.has_sampled(request)

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws more kept drafts than there are, of one that can go on."""
        op = self.draw(source, model)
        if op is None or source.below(2):
            return super().draw_misuse(source, model)
        drafts = len(model.cache.requests[op["request"]].drafts)
        return {**op, "kept": drafts + 1, "drafts": []} if drafts < 8 else None

    def get_anything(self) -> Mapping[str, Any]:
        return {"sampled": 1}

    def describe(self, op: Op) -> str:
        count_kept = f"keeps {op['kept']} drafts and " if op["kept"] else ""
        drafts = f", and drafts {op['drafts']}" if op["drafts"] else ""
        return f"{op['request']} {count_kept}samples {op['sampled']}{drafts}"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, count_kept = op["request"], op["kept"]
        request = model.cache.requests.get(name)
        gone = len(request.drafts) - count_kept if request else 0
        answer = ask(
            lambda: model.cache.accept(name, count_kept, op["sampled"], op["drafts"])
        )
        if request is not None and "error" not in answer:
            model.sampled.setdefault(name, request.computed)
            model.name_contents(name, request.computed)
            past = {"kept": count_kept, "rejected": gone, "drafted": len(op["drafts"])}
            model.past[name] |= {event for event, happens in past.items() if happens}
        return answer

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.accept(op)
        if "error" not in answer:
            computed = model.cache.requests[op["request"]].computed
            count_kept = op["request"], computed - op["kept"], computed
            system.check_published([count_kept], model)
        return answer

    def count_tags(self, op: Op) -> int:
        return 1 + len(op["drafts"])


OPERATIONS = index(
    Open(),
    Match(),
    Schedule(),
    Run(),
    Accept(),
    Preempt(),
    Free(),
    Fork(),
    Rewind(),
    Evict(),
    Reset(),
    Offload(),
    Load(),
    Landed(),
    Failed(),
    Save(),
    Restore(),
)
