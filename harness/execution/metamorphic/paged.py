"""Defines the shadow state of paged caches: the tokens of the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import Any, NamedTuple

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer
from lockstep.harness.execution.compare import PARTS
from lockstep.harness.execution.metamorphic.relations import (
    Shadow,
    Step,
    Tags,
)
from lockstep.harness.programs.program import Program
from lockstep.reference.paged import Content, Input, Space, cover

Tokens = tuple[Input, ...]


@dataclass
class Request:
    """A request, as the previous operations and answers determine it.

    Attributes:
        drafts: the proposed tokens after `tokens`.
        parents: for each draft, the number of the draft before it, from 1, or 0.
        computed: the number of tokens that are computed, or will be by launched steps.
        end: the number of tokens that will be computed after the scheduled step.
        transfer: the transfer that the request waits for.
        awaited: the number of tokens that the transfer loads.
        untold: the number of the last tokens that unfinished steps sample.
        lost: the first position that steps left out in groups that may lag.
    """

    space: Space
    tokens: Tokens
    drafts: Tokens = ()
    parents: tuple[int, ...] = ()
    computed: int = 0
    end: int = 0
    transfer: str | None = None
    awaited: int = 0
    untold: int = 0
    lost: int = maxsize

    @property
    def known(self) -> Tokens:
        return self.tokens + self.drafts

    def get_prefix(self, end: int) -> Tokens:
        """Returns the tokens that lead to the last of the first `end` slots."""
        draft, length = end - len(self.tokens), len(self.tokens)
        if draft <= 0:
            return self.tokens[:end]
        previous = self.get_prefix(length + self.parents[draft - 1])
        return (*previous, self.drafts[draft - 1])

    def reset(self, end: int = 0) -> None:
        """Drops the drafts, and sets the number of computed tokens."""
        self.drafts, self.computed, self.end, self.transfer = (), end, end, None
        self.lost = self.lost if self.lost < end else maxsize


def hide(group: Mapping[str, Any], start: int, slots: Tags, lost: int) -> Answer:
    """Returns the tokens of `slots` that a group of layers reads in a step.

    Args:
        group: the group in the config.
        start: the position at which the step begins.
        slots: the tokens that full attention would read.
        lost: the first position without content in the group, if it may lag.
    """
    if group["type"] == "state":
        return {"state": slots[start - 1 : start] if start else []}
    first = 0
    if group["type"] == "sliding":
        first = max(0, start + 1 - group["width"])
    if group["type"] == "chunked":
        first = start // group["width"] * group["width"]
    return {"first": first, "slots": slots[first : lost if group.get("lags") else None]}


class Segment(NamedTuple):
    """The tokens of one request in a step: their first position, the tags of the request
    up to the end of the step, and `lost` of the request after the step."""

    request: Request
    start: int
    tags: Tags
    lost: int


class PagedShadow(Shadow):
    """The tokens of all requests, and the tag of each token.

    Attributes:
        requests: name → request.
        step: the names of the scheduled requests.
        flights: the launched steps, without segments of requests that lost their slots.
        known: each prefix of any earlier request → the tag of its last token.
    """

    keeps = ("evict", "reset", "update_weights", "offload", "send", "save")

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.requests: dict[str, Request] = {}
        self.step: list[str] = []
        self.flights: list[list[Segment]] = []
        self.known: dict[Content, int] = {}

    def get(self, step: Step) -> Request:
        return self.requests[step.op["request"]]

    def put(self, step: Step, request: Request) -> None:
        """Stores the tags of a step, which are the tags of a request's last tokens."""
        length = len(request.known)
        for end, tag in enumerate(step.tags, length - len(step.tags) + 1):
            self.known.setdefault((request.space, request.get_prefix(end)), tag)

    def write_open(self, step: Step) -> None:
        op = step.op
        space = Space(op["namespace"], op["adapter"])
        request = Request(space, tuple(cover(op["tokens"], op["extras"])))
        self.requests[step.op["request"]] = request
        self.put(step, request)

    def write_schedule(self, step: Step) -> None:
        start, request = step.answer["start"], self.get(step)
        if start is not None:
            length = len(request.tokens)
            request.computed = start
            request.end = min(len(request.known), start + step.op["count"])
            request.drafts = request.drafts[: max(0, request.end - length)]
            self.step.append(step.op["request"])

    def list_segments(self, step: Step) -> list[Segment]:
        """Lists the segments of the scheduled step, which `step` launches."""
        segments = []
        for request in map(self.requests.__getitem__, self.step):
            ends = range(1, request.end + 1)
            prefixes = [(request.space, request.get_prefix(end)) for end in ends]
            tags = [self.known[prefix] for prefix in prefixes]
            lost = min(request.lost, request.computed if step.op["lags"] else maxsize)
            segments.append(Segment(request, request.computed, tags, lost))
        return segments

    def write_launch(self, step: Step) -> None:
        self.flights.append(self.list_segments(step))
        self.write_run(step)

    def write_finish(self, step: Step) -> None:
        for request, _, tags, _ in self.flights.pop(0):
            later = len(request.tokens) - len(tags) - 1
            request.untold = max(0, min(request.untold, later))

    def write_run(self, step: Step) -> None:
        for request, _, _, lost in self.list_segments(step):
            request.computed, request.lost = request.end, lost
        self.step = []

    def write_accept(self, step: Step) -> None:
        op, request = step.op, self.get(step)
        path = request.get_prefix(len(request.tokens) + op["kept"])
        request.tokens = (*path, op["sampled"])
        request.reset(len(path))
        request.drafts = tuple(op["drafts"])
        request.parents = tuple(op["parents"] or range(len(request.drafts)))
        request.untold += any(
            segment.request is request
            for segments in self.flights
            for segment in segments
        )
        self.put(step, request)

    def write_preempt(self, step: Step) -> None:
        request = self.get(step)
        request.tokens = request.tokens[: len(request.tokens) - request.untold]
        request.untold = 0
        request.reset()
        self.flights = [
            [segment for segment in segments if segment.request is not request]
            for segments in self.flights
        ]
        self.step = [name for name in self.step if name != step.op["request"]]

    def write_free(self, step: Step) -> None:
        self.write_preempt(step)
        del self.requests[step.op["request"]]

    def write_load(self, step: Step) -> None:
        request = self.get(step)
        if step.answer["loaded"] is not None:
            request.transfer, request.awaited = step.op["transfer"], step.answer["loaded"]

    def write_receive(self, step: Step) -> None:
        request = self.get(step)
        if step.answer["received"] is not None:
            request.transfer, request.awaited = step.op["transfer"], step.op["end"]

    def write_landed(self, step: Step) -> None:
        """Sets the token count of the request that waits for this transfer."""
        for request in self.requests.values():
            if request.transfer == step.op["transfer"]:
                request.reset(step.answer.get("kept", request.awaited))

    write_failed = write_landed

    def write_restore(self, step: Step) -> None:
        self.requests, self.step, self.flights = {}, [], []

    def write_fork(self, step: Step) -> None:
        """Applies a `fork` or a `rewind`: a request loses the tokens after its first
        tokens, and gets new tokens instead. A fork does this in a copy of the request."""
        op = step.op
        if step.answer["ok"]:
            origin = self.requests[op.get("source", op.get("request"))]
            drafted = range(len(origin.drafts))
            is_chain = all(origin.parents[draft] == draft for draft in drafted)
            chain = origin.known if is_chain else origin.tokens
            begin = chain[: op.get("to", origin.computed)]
            tokens, end = begin + tuple(op["tokens"]), len(begin)
            request = Request(origin.space, tokens, lost=origin.lost)
            request.reset(end)
            self.requests[op.get("target", op.get("request"))] = request
            self.put(step, request)

    write_rewind = write_fork

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        is_idle = not self.step and not self.flights  # a launched step may keep blocks
        return is_idle and "detour" not in self.requests

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists one detour: another request, whose tokens cannot be hit."""
        return [OTHER] if len(self.requests) < 4 else []

    def see(self, step: Step) -> Answer | None:
        """Returns the tokens that each group of layers reads in a step."""
        if step.name not in ("run", "finish"):
            return None
        segments = self.list_segments(step) if step.name == "run" else self.flights[0]
        caches = [
            hide(group, segment.start, segment.tags, segment.lost)
            for segment in segments
            for group in self.config["groups"]
        ]
        return {PARTS: caches}


OTHER = (
    "open request=detour tokens=[1,2,3] namespace=detour;"
    " schedule request=detour count=2; free request=detour reuse=false"
)
SHADOWS: Mapping[str, type[Shadow]] = dict.fromkeys(CONTRACTS["paged"].kinds, PagedShadow)
