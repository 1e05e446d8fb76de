"""The operations of the paged contract: what an engine's scheduler asks of its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.operation import Answer, Op, Operation, Source, ask, index
from lockstep.harness.contracts.paged.model import (
    MOST_LENGTH,
    MOST_REQUESTS,
    PagedModel,
)
from lockstep.harness.core.document import NAME, NAMES, Schema, integer
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Request

REQUEST: Schema = {**NAME, NAMES: "request"}
TOKEN: Schema = integer(0, 1 << 20)
TOKENS: Schema = {"type": "array", "items": TOKEN, "maxItems": MOST_LENGTH + 1}
NAMESPACE: Schema = {
    "type": ["string", "null"],
    "pattern": r"^[A-Za-z0-9_.-]{0,32}(?![\s\S])",
    "default": None,
}
"""What K and V depend on beside the tokens: an adapter, an image, a salt."""

ALPHABET = (1, 2, 1, 1, 2, 1, 0, 65_537)
LETTERS = "abcdefgh"

Fields = dict[str, Any] | None
"""Drawn fields of an operation, or None if nothing can be asked."""


def draw_tokens(source: Source, count: int) -> list[int]:
    return [source.pick(ALPHABET) for _ in range(count)]


def leave(values: Sequence[Any]) -> Any:
    """Leaves the choice to the backend, if there is one; the likeliest comes first."""
    return values[0] if len(values) == 1 else {"one_of": list(values)}


class PagedOperation(Operation):
    """An operation of a scheduler.

    Attributes:
        happens: the abstract state of the request that it leads to.
        changes: the same of all requests.
    """

    has_misuse = True
    happens: ClassVar[str] = ""
    changes: ClassVar[str] = ""

    def draw(self, source: Source, model: PagedModel) -> Op | None:
        fields = self.draw_fields(source, model)
        return None if fields is None else {"op": self.name, **fields}

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {}

    def observe(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = getattr(system, self.name)(op)
        return answer

    def note(self, op: Op, model: PagedModel) -> None:
        """Notes that it has happened."""
        if self.happens:
            model.past[op["request"]].add(self.happens)
        if self.changes:
            model.happened.add(self.changes)


class OnRequest(PagedOperation):
    """An operation on one request."""

    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["request"])
        if request is None:  # a misuse, where that must be refused
            return None
        return self.why_illegal_here(op, model, request)

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        """Says why it cannot be asked of a request that exists."""
        return None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        """Says whether it must be refused for a request that exists."""
        return False

    def suits(self, model: PagedModel, name: str, request: Request) -> bool:
        """Says whether it can be asked of a request now."""
        op = self.complete({"op": self.name, "request": name})
        illegal = self.why_illegal_here(op, model, request)
        return illegal is None and not self.is_misuse(model, request)

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        requests = model.cache.requests.items()
        names = [name for name, one in requests if self.suits(model, name, one)]
        if not names:
            return None
        name = source.pick(names)
        more = self.draw_more(source, model, model.cache.requests[name])
        return None if more is None else {"request": name, **more}

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        return {}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws the same of a request that does not exist, beside one that does, or of
        one for which it must be refused."""
        requests = model.cache.requests
        if not requests:
            return None
        wrong = [name for name, one in requests.items() if self.is_misuse(model, one)]
        name = next(one for one in LETTERS if one not in requests)
        if wrong and source.below(2):
            name = source.pick(wrong)
        return {"op": self.name, "request": name, **self.get_anything()}

    def get_anything(self) -> Mapping[str, Any]:
        """Returns the other fields that have no default."""
        return {}


class Open(PagedOperation):
    name, weight = "open", 5
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "tokens": TOKENS,
        "namespace": NAMESPACE,
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        known = op["request"] in model.cache.requests
        if len(model.cache.requests) >= MOST_REQUESTS and not known:
            return f"there are {MOST_REQUESTS} requests already"
        return None

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        free = [name for name in LETTERS if name not in model.cache.requests]
        contents = self.list_contents(model)
        namespace = None if source.below(4) else "x"
        tokens: Sequence[int] = ()
        if contents and source.below(4):
            namespace, tokens = source.pick(contents)
            if not source.below(3):
                tokens = tokens[: source.between(0, len(tokens))]
            if not source.below(8):
                namespace = "x" if namespace is None else None
        more = draw_tokens(source, source.pick((1, 0, 2, 3, 5, 8, 4)))
        drawn = [*tokens, *more] or [1]
        del drawn[max(1, model.config["max_length"] - source.below(4)) :]
        while model.why_too_long(len(drawn)):
            drawn.pop()
        return {"request": free[0], "tokens": drawn, "namespace": namespace}

    def describe(self, op: Op) -> str:
        space = f" in namespace {op['namespace']!r}" if op["namespace"] else ""
        return f"open request {op['request']} with tokens {op['tokens']}{space}"

    def list_contents(self, model: PagedModel) -> list[tuple[str | None, Sequence[int]]]:
        """Lists the tokens that requests have, and those that the last ones had."""
        live = [(one.namespace, one.tokens) for one in model.cache.requests.values()]
        return [*model.told[-4:], *live]

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        names = list(model.cache.requests)
        if names and source.below(2):
            return {"op": self.name, "request": source.pick(names), "tokens": [1]}
        free = next(one for one in LETTERS if one not in names)
        too_long = [1] * (model.config["max_length"] + 1)
        wrong: Sequence[tuple[list[int], str | None]]
        wrong = (([], None), (too_long, None), ([1], ""))
        tokens, namespace = source.pick(wrong)
        fields = {"request": free, "tokens": tokens, "namespace": namespace}
        return {"op": self.name, **fields}

    def expect(self, op: Op, model: PagedModel) -> Answer:
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


class Match(OnRequest):
    """Asks how many tokens a waiting request could reuse now. Nothing changes."""

    name = "match"
    words = "how many tokens of {request} can be hit?"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        return "it holds slots" if request.is_held else None

    def expect(self, op: Op, model: PagedModel) -> Answer:
        if op["request"] not in model.cache.requests:
            return {"error": "usage"}
        return {"hit": leave(model.list_hits(op["request"]))}


class Schedule(OnRequest):
    """Gives slots to the next tokens of a request; of one that waits, behind a hit."""

    name, weight = "schedule", 12
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "count": {**integer(1, MOST_LENGTH), "default": MOST_LENGTH},
    }

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return request.scheduled > 0 or model.cache.has_sampled(request)

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        left = len(request.known) - request.computed
        edges = [left, 1, left, 2]
        for group in model.config["groups"]:
            block = group["block"]
            edges += [block - request.computed % block, block + 1, 2 * block]
        return {"count": max(1, min(source.pick(edges), left))}

    def get_anything(self) -> Mapping[str, Any]:
        return {"count": 1}

    def describe(self, op: Op) -> str:
        count = "all" if op["count"] == MOST_LENGTH else f"up to {op['count']}"
        return f"schedule {count} tokens of {op['request']}"

    def expect(self, op: Op, model: PagedModel) -> Answer:
        name = op["request"]
        request = model.cache.requests.get(name)
        if request is None or self.is_misuse(model, request):
            return ask(lambda: model.cache.schedule(name, op["count"]))
        starts = [request.computed] if request.is_held else model.list_hits(name)
        end = min(len(request.known), starts[0] + op["count"])
        if not model.must_have_room(name, end):
            return {"start": leave([None, *starts])}
        if any(model.may_put_off(name, start, op["count"]) for start in starts):
            return {"start": leave([*starts, None])}
        return {"start": leave(starts)}

    def accept(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" in observed:
            return
        name, start = op["request"], observed["start"]
        if start is None:
            model.happened.add("no-room")
            return
        request = model.cache.requests[name]
        held = model.spans[name][1] if request.is_held else 0  # rejected drafts included
        if not request.is_held:
            self.note_hit(name, start, model)
        whole = min(op["count"], len(request.known) - start)
        count: Any = observed.get("count", whole)
        if not (1 if model.config["aligned"] else whole) <= count <= whole:
            raise Broken("result", f"took {count} tokens; {whole} were asked for")
        model.cache.schedule(name, count, 0 if request.is_held else start)
        model.spans[name] = start, max(held, request.end)

    def note_hit(self, name: str, hit: int, model: PagedModel) -> None:
        model.past[name] |= {"hit"} if hit else {"missed"}
        groups = model.config["groups"]
        if any(hit % one["block"] for one in groups if one["type"] != "state"):
            model.past[name].add("partial-hit")
        if not model.cache.can_hit(name, hit, in_step=False):
            model.leaning.add(name)


class Run(PagedOperation):
    """Computes the step: every layer writes K and V of all its tokens, and reads."""

    name, weight = "run", 8
    writes, has_misuse = True, False
    words = "run the step"

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        return None if model.cache.step else "the step is empty"

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {} if model.cache.step else None

    def expect(self, op: Op, model: PagedModel) -> Answer:
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

    def observe(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.run(model.ran, model)
        return answer


class Accept(OnRequest):
    """Goes on behind the last computed token: some drafts were right, one was sampled."""

    name, weight = "accept", 12
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
        kept = source.pick((0, drafted, source.between(0, drafted)))
        room = model.config["max_length"] - len(request.tokens) - kept - 1
        most = min(model.config["lookahead"], room)
        count = source.pick((0, most, most, most // 2)) if most > 0 else 0
        drafts = draw_tokens(source, count)
        [sampled] = draw_tokens(source, 1)
        return {"sampled": sampled, "kept": kept, "drafts": drafts}

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
        kept = f"keeps {op['kept']} drafts and " if op["kept"] else ""
        drafts = f", and drafts {op['drafts']}" if op["drafts"] else ""
        return f"{op['request']} {kept}samples {op['sampled']}{drafts}"

    def expect(self, op: Op, model: PagedModel) -> Answer:
        name, kept = op["request"], op["kept"]
        request = model.cache.requests.get(name)
        gone = len(request.drafts) - kept if request else 0
        answer = ask(lambda: model.cache.accept(name, kept, op["sampled"], op["drafts"]))
        if request is not None and "error" not in answer:
            model.name_contents(name, request.computed)
            past = {"kept": kept, "rejected": gone, "drafted": len(op["drafts"])}
            model.past[name] |= {event for event, happens in past.items() if happens}
        return answer

    def count_tags(self, op: Op) -> int:
        return 1 + len(op["drafts"])


class LettingGo(OnRequest):
    """Takes the slots of a request. What it has not computed is never hit."""

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        if request.scheduled and model.leaning - {op["request"]}:
            return "another request of the step may read what this one computes"
        return None


class Preempt(LettingGo):
    name, weight = "preempt", 2
    words = "preempt {request}"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        why = super().why_illegal_here(op, model, request)
        return why or (None if request.is_held else "it holds no slots")

    def expect(self, op: Op, model: PagedModel) -> Answer:
        name = op["request"]
        answer = ask(lambda: model.cache.preempt(name))
        if "error" not in answer:
            model.past[name] = {"preempted"}  # all else is over
            model.leaning.discard(name)
        return answer


class Free(LettingGo):
    name, weight = "free", 4
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "reuse": {"type": "boolean", "default": True},
    }

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        return {"reuse": source.below(3) > 0}

    def expect(self, op: Op, model: PagedModel) -> Answer:
        name = op["request"]
        ended = model.cache.requests.get(name)
        answer = ask(lambda: model.cache.free(name, op["reuse"]))
        if ended is not None:
            model.told.append((ended.namespace, ended.tokens))
            model.leaning.discard(name)
            model.happened.add("freed" if op["reuse"] else "withdrawn")
        return answer

    def describe(self, op: Op) -> str:
        rest = "" if op["reuse"] else "; nobody may hit what it computed"
        return f"free {op['request']}{rest}"


class Fork(OnRequest):
    name, weight = "fork", 3
    words = "fork {source} into {target}, which goes on with {tokens}"
    fields: ClassVar[Mapping[str, Schema]] = {
        "source": REQUEST,
        "target": REQUEST,
        "tokens": TOKENS,
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["source"])
        if len(model.cache.requests) >= MOST_REQUESTS:
            return f"there are {MOST_REQUESTS} requests already"
        if op["target"] in model.cache.requests:
            return f"there is a request {op['target']} already"
        return self.why_illegal_here(op, model, request) if request else None

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        return model.why_too_long(request.computed + len(op.get("tokens", [1])))

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not request.computed or request.scheduled > 0

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        if len(model.cache.requests) >= MOST_REQUESTS:
            return None
        fields = super().draw_fields(source, model)
        if fields is None:
            return None
        origin = model.cache.requests[fields["request"]]
        target = next(one for one in LETTERS if one not in model.cache.requests)
        room = model.config["max_length"] - origin.computed
        tokens = draw_tokens(source, min(room, source.pick((1, 2, 3))))
        return {"source": fields["request"], "target": target, "tokens": tokens}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        requests = model.cache.requests
        if not requests or len(requests) >= MOST_REQUESTS:
            return None
        free = [one for one in LETTERS if one not in requests]
        wrong = [name for name, one in requests.items() if self.is_misuse(model, one)]
        right = [name for name in requests if name not in wrong]
        names = [*wrong, free[0]] if source.below(2) or not right else right
        name = source.pick(names)
        tokens = [] if name in right else [1]
        return {"op": self.name, "source": name, "target": free[1], "tokens": tokens}

    def expect(self, op: Op, model: PagedModel) -> Answer:
        request = model.cache.requests.get(op["source"])
        if request is None or self.is_misuse(model, request) or not op["tokens"]:
            return ask(lambda: model.cache.fork(op["source"], op["target"], op["tokens"]))
        return {"ok": leave([True] if self.has_room(op, model) else [False, True])}

    def has_room(self, op: Op, model: PagedModel) -> bool:
        """Says whether a copy of all that the source holds must fit."""
        held = [name for name, one in model.cache.requests.items() if one.is_held]
        needed = sum(
            model.count_blocks(name, *model.spans[name]) + len(model.cache.groups)
            for name in [*held, op["source"]]
        )
        blocks: int = model.config["blocks"]
        return needed <= blocks

    def accept(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if not observed.get("ok"):
            return
        source, target = op["source"], op["target"]
        model.cache.fork(source, target, op["tokens"])
        model.name_contents(target, model.cache.requests[target].computed)
        model.spans[target] = model.spans[source]
        model.past[target] = {"forked"}
        model.past[source].add("forked")

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class Rewind(OnRequest):
    """Goes back in a request and on with other tokens. Where a group has freed or
    overwritten what lies further back, a backend may refuse."""

    name, weight, happens = "rewind", 2, "rewound"
    words = "rewind {request} to {to} tokens, and go on with {tokens}"
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
        return request.scheduled > 0 or not request.computed

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        computed = request.computed
        to = source.pick(
            (computed, computed - 1, computed // 2, computed - 2, computed - 3)
        )
        to = min(max(1, to), model.config["max_length"] - 1)
        room = model.config["max_length"] - to
        return {"to": to, "tokens": draw_tokens(source, min(room, 1 + source.below(3)))}

    def get_anything(self) -> Mapping[str, Any]:
        return {"to": 1, "tokens": [1]}

    def expect(self, op: Op, model: PagedModel) -> Answer:
        name, to, tokens = op["request"], op["to"], op["tokens"]
        request = model.cache.requests.get(name)
        if (
            request is None
            or self.is_misuse(model, request)
            or not (tokens and 0 < to <= request.computed)
        ):
            return ask(lambda: model.cache.rewind(name, to, tokens))
        full = all(group.type == "full" for group in model.cache.groups)
        return {"ok": leave([True] if full else [True, False])}

    def accept(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if observed.get("ok"):
            name, to = op["request"], op["to"]
            model.cache.rewind(name, to, op["tokens"])
            model.name_contents(name, to)
            model.spans[name] = min(to, model.spans[name][0]), to
            self.note(op, model)

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class Evict(PagedOperation):
    """Drops blocks that can be hit but that no request holds."""

    name, weight, changes = "evict", 2, "evicted"
    has_misuse = False
    words = "evict up to {count} blocks"
    fields: ClassVar[Mapping[str, Schema]] = {"count": integer(1, 256)}

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {"count": source.pick((1, 2, 4, 256))}

    def expect(self, op: Op, model: PagedModel) -> Answer:
        self.note(op, model)
        return {"evicted": {"between": [0, op["count"]]}}


class Reset(PagedOperation):
    """Forgets everything that could be hit."""

    name, changes, has_misuse = "reset", "reset", False
    words = "reset the prefix cache"

    def expect(self, op: Op, model: PagedModel) -> Answer:
        done = model.cache.reset()
        if done:
            self.note(op, model)
        return {"ok": done}


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
)
