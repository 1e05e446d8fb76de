"""The operations of the paged contract: requests, and the steps of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar

from msgspec import UnsetType

from lockstep.harness.backends.driver.messages import KEYS, NUMBERS
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask, index
from lockstep.harness.contracts.paged.base import (
    EXTRAS,
    NAMESPACE,
    NAMESPACES,
    NO_SPACE,
    REQUEST,
    SPACES,
    TOKEN,
    TOKENS,
    Fields,
    OnRequest,
    PagedOperation,
    chosen,
    draw_extras,
    draw_near,
    draw_tokens,
    find_free_name,
    leave,
    list_tokens,
)
from lockstep.harness.contracts.paged.branches import (
    Evict,
    Fork,
    Free,
    Preempt,
    Reset,
    Rewind,
    UpdateWeights,
)
from lockstep.harness.contracts.paged.handover import Receive, Send
from lockstep.harness.contracts.paged.model import (
    MOST_LENGTH,
    MOST_REQUESTS,
    PagedModel,
    can_lag,
)
from lockstep.harness.contracts.paged.transfers import (
    Failed,
    Landed,
    Load,
    Offload,
    Restore,
    Save,
)
from lockstep.harness.contracts.states import list_true
from lockstep.harness.core.document import Schema, integer
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.reference.paged import Input, Request, Space


class Open(PagedOperation):
    """Opens a request, which waits and holds no slots.

    Each of the `extras` is [first, end, key]: `key` belongs to the positions [first, end)
    of the prompt. Content depends on the namespace, the adapter, the tokens and the
    extras. An empty name, and an extra that is empty, leaves the prompt or begins before
    the end of the extra before it, must be refused.

    Answer: `{}` or `error`.
    """

    name, weight = "open", 5
    effect = Effect.ADDS
    messages = {
        "open_request": (
            {"request": str, "tokens": list[int], "namespace": str | None, **KEYS},
            {},
        )
    }
    answer = schemas.NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "tokens": TOKENS,
        "namespace": NAMESPACE,
        "adapter": NAMESPACE,
        "extras": EXTRAS,
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        exists = op["request"] in model.cache.requests
        if len(model.cache.requests) >= MOST_REQUESTS and not exists:
            return f"there are {MOST_REQUESTS} requests already"
        if (op["adapter"] or op["extras"]) and not model.config["extra_keys"]:
            return "the config has no extra_keys"
        return None

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        live = [(item.space, item.tokens) for item in model.cache.requests.values()]
        contents: Sequence[tuple[Space, Sequence[Input]]] = [*model.told[-4:], *live]
        has_keys = model.config["extra_keys"]
        spaces = SPACES if has_keys else NAMESPACES
        is_named = not source.below(2 if model.goes_far or has_keys else 4)
        space = draw_near(source, spaces) if is_named else NO_SPACE
        tokens: Sequence[Input] = ()
        away = model.withdrawn or model.offloaded
        if model.goes_far and away and not model.transfers and source.below(4):
            contents = away
        if contents and source.below(4):
            space, tokens = source.pick(contents)
            if not source.below(12 if model.is_bound else 3):
                tokens = tokens[: source.between(0, len(tokens))]
            if not source.below(2 if has_keys and not model.goes_far else 6):
                also = [] if space == NO_SPACE else [NO_SPACE]
                space = draw_near(source, spaces, space, also)
        appended = draw_tokens(source, source.pick((1, 0, 2, 3, 5, 8, 4)))
        drawn: list[Input] = [*tokens, *appended] or [1]
        del drawn[max(1, model.config["max_length"] - source.below(4)) :]
        while model.why_too_long(len(drawn)):
            drawn.pop()
        fields = {"request": find_free_name(model), "tokens": list_tokens(drawn)}
        extras: list[list[Any]] = []
        if has_keys:
            differs = not source.below(6 if model.goes_far else 2)
            extras = draw_extras(source, drawn, len(tokens), differs)
        return {**fields, **space._asdict(), "extras": extras}

    def describe(self, op: Op) -> str:
        names = (f"{name} {op[name]!r}" for name in Space._fields if op[name])
        extras = (f"{key!r} at {first} … {end - 1}" for first, end, key in op["extras"])
        more = "".join(f", {text}" for text in (*names, *extras))
        return f"open request {op['request']} with tokens {op['tokens']}{more}"

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        names = list(model.cache.requests)
        if names and source.below(2):
            return {"op": self.name, "request": source.pick(names), "tokens": [1]}
        length = next(number for number in count(1) if model.why_too_long(number))
        wrong: list[Mapping[str, Any]]
        wrong = [{"tokens": []}, {"tokens": [1] * length}, {"namespace": ""}]
        if model.config["extra_keys"]:
            extras = [[[1, 1, "x"]], [[0, 2, "x"]], [[-1, 1, "x"]], [[0, 1, ""]]]
            overlapping = [[0, 2, "x"], [1, 2, "y"]]
            wrong += [{"adapter": ""}, {"tokens": [1] * 2, "extras": overlapping}]
            wrong.append({"extras": source.pick(extras)})
        fields = {"request": find_free_name(model), "tokens": [1], **source.pick(wrong)}
        return {"op": self.name, **fields}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, tokens, *keys = (op[field] for field in self.fields)
        if model.why_too_long(len(tokens)):
            return {"error": "usage"}
        answer = ask(lambda: model.cache.open(name, tokens, *keys))
        if "error" not in answer:
            model.past[name] = set()
            model.name_contents(name, 0)
            named = {"namespaces": op["namespace"], "adapters": op["adapter"]}
            model.happened.update(list_true({**named, "extras": op["extras"]}))
        return answer

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        fields = [*self.fields] if model.config["extra_keys"] else [*self.fields][:3]
        extras = [tuple(extra) for extra in op["extras"]]
        answer: Answer = system.call({**op, "extras": extras}, fields)
        return answer

    def count_tags(self, op: Op) -> int:
        return len(op["tokens"])


class GoingOn(OnRequest):
    """An operation that schedules a step of a request, or that follows the step."""

    def prefer(self, names: Sequence[str], model: PagedModel) -> Sequence[str]:
        """Returns the requests with drafts or untold tokens, or all `names` if there are
        none.

        Drafts are kept or rejected two operations later.
        """
        requests = model.cache.requests
        late = [name for name in names if requests[name].drafts or requests[name].untold]
        return late or names


class Match(OnRequest):
    """Asks for the number of tokens that a waiting request could reuse now. Nothing
    changes.

    Answer: `hit`: this number, which is less than the request's length.
    """

    name, result = "match", "hit"
    effect = Effect.READS
    answer = chosen(hit=schemas.NUMBER)
    text = "how many tokens of {request} can be hit?"

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        return "it holds slots" if request.is_held else None

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        if op["request"] not in model.cache.requests:
            return {"error": "usage"}
        return {"hit": leave(model.list_hits(op["request"]))}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.watch_hit(op, self.fields, self.result, model)
        return answer


class Schedule(GoingOn):
    """Gives slots to the next `count` tokens and drafts of a request, or to all if fewer
    remain. A waiting request first reuses a prefix.

    Answer: `start`: the position of the first token with a new slot; null if there are
    too few blocks, and then nothing changes, but for slots taken from other requests.
    """

    name, weight, result = "schedule", 12, "start"
    effect = Effect.MOVES
    answer = chosen(start=schemas.NUMBER_OR_NONE)
    filling: ClassVar[Mapping[str, Any]] = {"count": 1}
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "count": {**integer(1, MOST_LENGTH), "default": MOST_LENGTH},
    }

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        if request.launched and model.cache.can_accept(request):
            return "its sampled token is not accepted"
        return None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        taken = request.scheduled > 0 or request.awaited > 0
        return taken or request.begun == len(request.known)

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        remaining = len(request.known) - request.begun
        edges = [remaining, 1, remaining, 2]
        for group in model.config["groups"]:
            block = group["block"]
            edges += [block - request.begun % block, block + 1, 2 * block]
        if request.drafts and source.below(8 if model.config["trees"] else 2):
            edges = [remaining]
        return {"count": max(1, min(source.pick(edges), remaining))}

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
        return {"start": leave([*starts, *([None] if self.may_wait(op, model) else [])])}

    def list_starts(self, op: Op, model: PagedModel) -> list[int]:
        """Lists the positions where the step may begin, the last position first."""
        request = model.cache.requests[op["request"]]
        return [request.begun] if request.is_held else model.list_hits(op["request"])

    def get_end(self, op: Op, model: PagedModel, starts: Sequence[int]) -> int:
        """Returns the largest position where the step may end."""
        exists = len(model.cache.requests[op["request"]].known)
        return min(exists, starts[0] + int(op["count"]))

    def may_wait(self, op: Op, model: PagedModel) -> bool:
        name, count = op["request"], op["count"]
        starts = self.list_starts(op, model)
        return any(model.may_put_off(name, start, count) for start in starts)

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.watch_hit(op, self.fields, self.result, model)
        name = op["request"]
        request = model.cache.requests.get(name)
        if "error" in answer or request is None or self.is_misuse(model, request):
            return answer
        end = self.get_end(op, model, self.list_starts(op, model))
        refused, taken = answer.get("start") is None, answer.get("preempted", ())
        if taken:
            has_room = system.pool is None and model.must_have_room(name, end)
            self.check_preempted(name, taken, refused, has_room, model)
        if taken or (refused and not self.may_wait(op, model)):
            end = model.cache.count_admitted(name, end)
            got = "took slots of other requests" if taken else "got no slots"
            system.check_refusal(name, end, model, got, evicts=not taken)
        return answer

    def check_preempted(
        self,
        name: str,
        taken: Sequence[Any],
        refused: bool,
        has_room: bool,
        model: PagedModel,
    ) -> None:
        """Raises Broken if a step must not take the slots of the requests `taken`.

        If the backend reports its pool, `check_refusal` checks whether it had room.
        """
        cache, why = model.cache, ""
        if not model.config["preempts"]:
            why = "although `preempts` is not declared"
        elif has_room:
            why = "although all requests fit"
        for other in taken:
            is_known = isinstance(other, str) and other in cache.requests
            if not why and not (is_known and cache.can_lose(name, other, refused)):
                why = f"but {format_plain(other)} is in the step, or holds no slots"
        if why:
            names = format_plain(list(taken))
            raise Broken("result", f"{name} took the slots of requests {names}, {why}")

    def resolve(self, op: Op, model: PagedModel, observed: Answer) -> None:
        if "error" in observed:
            return
        name, start = op["request"], observed["start"]
        for other in dict.fromkeys(observed.get("preempted", ())):
            model.preempt(other)
        if start is None:
            model.happened.add("no-room")
            return
        request = model.cache.requests[name]
        end = model.spans[name][1] if request.is_held else 0  # with rejected drafts
        if not request.is_held:
            model.sampled.pop(name, None)
            model.note_hit(name, start)
        whole = min(op["count"], len(request.known) - start)
        count: Any = observed.get("count", whole)
        if not (1 if model.config["aligned"] else whole) <= count <= whole:
            raise Broken("result", f"took {count} tokens, but {whole} were requested")
        model.cache.schedule(name, count, 0 if request.is_held else start)
        begin = model.find_begin(name, start)
        model.spans[name] = begin, max(end, request.end, request.admitted)


class Launch(PagedOperation):
    """Begins to compute the planned step. The scheduler goes on: it plans the next step,
    and may preempt, free and offload requests of unfinished steps. Steps execute in the
    order of their launches. If `lags` is true, the step leaves out the groups that may
    lag, which then neither write nor read.

    Answer: `{}`.
    """

    name, weight = "launch", 8
    effect = Effect.ADDS
    messages = {"launch": ({"lags": bool | UnsetType}, {})}
    answer = schemas.record()
    writes, has_misuse = True, False
    fields: ClassVar[Mapping[str, Schema]] = {
        "lags": {"type": "boolean", "default": False}
    }

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        if len(model.flights) >= self.get_limit(model):
            return f"{len(model.flights)} steps are unfinished"
        if op["lags"] and not can_lag(model.config):
            return "no group may lag"
        return None if model.cache.step else "the step is empty"

    def get_limit(self, model: PagedModel) -> int:
        """Returns how many steps may be unfinished after the operation."""
        limit: int = model.config["flight"]
        return limit

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {"lags": True} if can_lag(model.config) and source.below(3) == 0 else {}

    def describe(self, op: Op) -> str:
        left_out = " without the groups that may lag" * op.get("lags", False)
        return f"{self.text or f'{self.name} the step'}{left_out}"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        model.launch(op["lags"])
        return {}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = getattr(system, f"{self.name}_step")(model)
        return answer


class Finish(Launch):
    """Ends the oldest launched step: each layer writes all new positions, then reads.
    Results for requests that were preempted or have ended are dropped.
    With `overlap`, the cache is told the token that each request of the step has sampled.

    Answer: as of `run`, for the requests that have kept their slots.
    """

    name, weight = "finish", 5
    messages = {"finish": ({"sampled": list[int | None] | UnsetType}, {})}
    fields: ClassVar[Mapping[str, Schema]] = {}
    answer = schemas.record(
        caches=schemas.list_of(
            schemas.record(first=schemas.NUMBER, slots=schemas.TAGS),
            schemas.record(state=schemas.TAGS),
        )
    )
    text = "finish the oldest step"

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        return None if model.flights else "no step is unfinished"

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {}

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        """Ends the step, and returns the content that each request reads.

        A state group reads the state before the request's tokens. Another group reads all
        tokens that at least one token of the request attends to.
        """
        answers: list[Answer] = []
        model.finish()
        for segment in model.returned:
            for group in model.cache.groups:
                if group.type == "state":
                    tags = segment.tags[max(0, segment.start - 1) : segment.start]
                    answers.append({"state": tags})
                else:
                    first, valid = group.first(segment.start), segment.count_valid(group)
                    answers.append({"first": first, "slots": segment.tags[first:valid]})
            model.has_loaded |= "loaded" in model.past[segment.name]
        return {"caches": answers}

    def verify(self, op: Op, system: Any, model: PagedModel) -> None:
        system.verify_attention()


class Run(Launch):
    """Computes the step at once: each layer writes all new positions, then reads. If
    `lags` is true, the groups that may lag neither write nor read.

    Answer: `caches`: an entry for each group of each request, in the order of the step.
    `first`: the oldest position that the request's tokens attend to; `slots`: the tags
    from `first` on. In a group that may lag, the tags end before the first position that
    the group has left out. For a state group, `state`: the tag of the last token that the
    state had read before the step, if there is any.
    """

    name, weight = "run", 8
    messages = {"run": ({"lags": bool | UnsetType}, {})}
    answer = Finish.answer

    def get_limit(self, model: PagedModel) -> int:
        return 1

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        super().run_reference(op, model)
        return OPERATIONS["finish"].run_reference(op, model)

    def verify(self, op: Op, system: Any, model: PagedModel) -> None:
        system.verify_attention()


class Accept(GoingOn):
    """Continues after the last computed token: keeps draft `kept` (from 1; 0: none) and
    the drafts that lead to it, appends the token `sampled`, and adds new `drafts`. Each
    draft follows the draft before it, or the draft with the number in `parents` (0 for
    `sampled`). If the config has `overlap`, a request without drafts may also continue
    after its last launched token; the cache is then told `sampled` by `finish`.

    Answer: `{}` or `error`.
    """

    name, weight, result = "accept", 12, "moves"
    effect = Effect.ADDS
    messages = {
        "accept": (
            {
                "request": str,
                "kept": int,
                "sampled": int,
                "drafts": list[int],
                "parents": NUMBERS,
            },
            {"moves": list[tuple[int, int, int, int]] | UnsetType},
        )
    }
    answer = schemas.NOTHING_OR_USAGE
    fields: ClassVar[Mapping[str, Schema]] = {
        "request": REQUEST,
        "kept": {**integer(0, 8), "default": 0},
        "sampled": TOKEN,
        "drafts": {"type": "array", "items": TOKEN, "maxItems": 8, "default": []},
        "parents": {
            "type": "array",
            "items": integer(-1, 8),
            "maxItems": 9,
            "default": [],
        },
    }
    filling: ClassVar[Mapping[str, Any]] = {"sampled": 1}

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        drafts = len(op.get("drafts", ()))
        if drafts > model.config["lookahead"]:
            return "these are more drafts than the lookahead"
        if op.get("parents") and not model.config["trees"]:
            return "the config has no trees"
        if drafts and request.launched:
            return "the sampled token comes before its drafts"
        path = request.list_path(min(op.get("kept", 0), len(request.drafts)))
        if len(request.tokens) + len(path) + 1 + drafts > model.config["max_length"]:
            return "it would be too long"
        return None

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        drafted = len(request.drafts)
        kept = source.pick((0, drafted, source.between(0, drafted)))
        length = len(request.tokens) + len(request.list_path(kept)) + 1
        most = min(model.config["lookahead"], model.config["max_length"] - length)
        has_drafts = most > 0 and not request.launched
        count = source.pick((0, most, most, most // 2)) if has_drafts else 0
        drafts = draw_tokens(source, count)
        [sampled] = draw_tokens(source, 1)
        earlier = range(count if model.config["trees"] else 0)
        parents = [source.pick((0, at, source.between(0, at))) for at in earlier]
        return {"sampled": sampled, "kept": kept, "drafts": drafts, "parents": parents}

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        return not model.cache.can_accept(request)

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws a call for an invalid request, or one that keeps too many drafts, or one
        whose drafts do not form a tree."""
        op = self.draw(source, model)
        if op is None or source.below(2):
            return super().draw_misuse(source, model)
        before, drafts = op["parents"][:-1], len(op["drafts"])
        kept = len(model.cache.requests[op["request"]].drafts) + 1
        if kept > 8:
            return None
        wrong: list[Mapping[str, Any]] = [{"kept": kept, "drafts": [], "parents": []}]
        if model.config["trees"]:
            wrong.append({"parents": [0] * (drafts + 1)})
            wrong += [{"parents": [*before, at]} for at in (drafts, -1) if drafts]
        return {**op, **source.pick(wrong)}

    def describe(self, op: Op) -> str:
        kept = f"keeps the drafts up to number {op['kept']}, " if op["kept"] else ""
        drafts = f", and drafts {op['drafts']}" if op["drafts"] else ""
        parents = f" after the drafts {op['parents']}" if op["parents"] else ""
        return f"{op['request']} {kept}samples {op['sampled']}{drafts}{parents}"

    def run_reference(self, op: Op, model: PagedModel) -> Answer:
        name, *values = (op[field] for field in self.fields)
        request = model.cache.requests.get(name)
        begin, drafted = (len(request.tokens), len(request.drafts)) if request else (0, 0)
        model.accepted = []
        answer = ask(lambda: model.cache.accept(name, *values))
        if request is not None and "error" not in answer:
            end = len(request.tokens) - 1
            model.accepted = [(name, begin, end)]
            model.sampled.setdefault(name, end)
            model.name_contents(name, end)
            past = {
                "kept": end > begin,
                "rejected": drafted > end - begin,
                "drafted": op["drafts"],
                "branched": not request.is_chain,
                "moved": op["kept"] > end - begin,
            }
            model.past[name].update(list_true(past))
        return answer

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        if model.accepted and model.cache.requests[op["request"]].launched:
            return {}  # `finish` tells the token
        fields = [*self.fields][: 5 if model.config["trees"] else 4]
        answer: Answer = system.call(op, fields, self.result)
        if "error" not in answer:
            system.move_slots(answer.pop(self.result) or ())
            system.check_published(model.accepted, model)
        return answer

    def count_tags(self, op: Op) -> int:
        return 1 + len(op["drafts"])


def propose_overlap(model: PagedModel) -> Sequence[str]:
    """Lists operations that schedule, launch and tell sampled tokens."""
    untold = [item for item in model.cache.requests.values() if item.untold]
    if any(item.scheduled for item in untold):
        return "launch", "finish"
    if any(item.begun < len(item.known) for item in untold):
        return ("schedule",)
    return ("finish", "accept") if untold else ("accept",) * bool(model.flights)


OPERATIONS = index(
    Open(),
    Match(),
    Schedule(),
    Run(),
    Launch(),
    Finish(),
    Accept(),
    Preempt(),
    Free(),
    Fork(),
    Rewind(),
    Evict(),
    Reset(),
    UpdateWeights(),
    Offload(),
    Load(),
    Landed(),
    Failed(),
    Send(),
    Receive(),
    Save(),
    Restore(),
)
