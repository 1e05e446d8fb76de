"""Defines the shadow state of paged caches: the tokens of the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
    Shadow,
    Step,
    Tags,
)
from lockstep.harness.programs.program import Program

Tokens = tuple[int, ...]
Prefix = tuple[str | None, Tokens]
"""A namespace and the first tokens of a request."""


@dataclass(frozen=True)
class Request:
    """A request, as the previous operations and answers determine it.

    Attributes:
        drafts: the proposed tokens after `tokens`.
        computed: the number of computed tokens.
        end: the number of tokens that will be computed after the scheduled step.
        transfer: the transfer that the request waits for.
        awaited: the number of tokens that the transfer loads.
    """

    namespace: str | None
    tokens: Tokens
    drafts: Tokens = ()
    computed: int = 0
    end: int = 0
    transfer: str | None = None
    awaited: int = 0

    @property
    def known(self) -> Tokens:
        return self.tokens + self.drafts


def hide(group: Mapping[str, Any], start: int, slots: Tags) -> Answer:
    """Returns the tokens of `slots` that a group of layers reads in a step.

    Args:
        group: the group in the config.
        start: the position at which the step begins.
        slots: the tokens that full attention would read.
    """
    if group["type"] == "state":
        return {"state": slots[start - 1 : start] if start else []}
    first = 0
    if group["type"] == "sliding":
        first = max(0, start + 1 - group["width"])
    if group["type"] == "chunked":
        first = start // group["width"] * group["width"]
    return {"first": first, "slots": slots[first:]}


class PagedShadow(Shadow):
    """The tokens of all requests, and the tag of each token.

    Attributes:
        requests: name → request.
        step: the names of the scheduled requests.
        known: each prefix of any earlier request → the tag of its last token.
    """

    keeps = ("evict", "reset", "offload", "save")

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.requests: dict[str, Request] = {}
        self.step: list[str] = []
        self.known: dict[Prefix, int] = {}

    def get(self, step: Step) -> Request:
        return self.requests[step.op["request"]]

    def put(self, name: str, request: Request, tags: Tags = ()) -> None:
        """Stores a request; `tags` are the tags of its last tokens if these are new."""
        self.requests[name] = request
        tokens = request.tokens + request.drafts
        for end, tag in enumerate(tags, len(tokens) - len(tags) + 1):
            self.known.setdefault((request.namespace, tokens[:end]), tag)

    def write_open(self, step: Step) -> None:
        request = Request(step.op["namespace"], tuple(step.op["tokens"]))
        self.put(step.op["request"], request, step.tags)

    def write_schedule(self, step: Step) -> None:
        start, request = step.answer["start"], self.get(step)
        if start is not None:
            length = len(request.tokens)
            end = min(length + len(request.drafts), start + step.op["count"])
            drafts = request.drafts[: max(0, end - length)]
            request = replace(request, drafts=drafts, computed=start, end=end)
            self.put(step.op["request"], request)
            self.step.append(step.op["request"])

    def write_run(self, step: Step) -> None:
        for name in self.step:
            request = self.requests[name]
            self.put(name, replace(request, computed=request.end))
        self.step = []

    def write_accept(self, step: Step) -> None:
        op, request = step.op, self.get(step)
        tokens = (*request.tokens, *request.drafts[: op["kept"]], op["sampled"])
        end, drafts = len(tokens) - 1, tuple(op["drafts"])
        request = replace(request, tokens=tokens, drafts=drafts, computed=end, end=end)
        self.put(op["request"], request, step.tags)

    def write_preempt(self, step: Step) -> None:
        name, request = step.op["request"], self.get(step)
        self.put(name, Request(request.namespace, request.tokens))
        self.step = [scheduled for scheduled in self.step if scheduled != name]

    def write_free(self, step: Step) -> None:
        self.write_preempt(step)
        del self.requests[step.op["request"]]

    def write_load(self, step: Step) -> None:
        awaited, transfer = step.answer["loaded"], step.op["transfer"]
        if awaited is not None:
            request = replace(self.get(step), transfer=transfer, awaited=awaited)
            self.put(step.op["request"], request)

    def write_landed(self, step: Step) -> None:
        """Sets the token count of the request that waits for this transfer."""
        for name, request in self.requests.items():
            if request.transfer == step.op["transfer"]:
                end = step.answer.get("kept", request.awaited)
                request = Request(request.namespace, request.tokens, (), end, end)
                self.put(name, request)

    write_failed = write_landed

    def write_restore(self, step: Step) -> None:
        self.requests, self.step = {}, []

    def write_fork(self, step: Step) -> None:
        """Applies a `fork` or a `rewind`: a request loses the tokens after its first
        tokens, and gets new tokens instead. A fork does this in a copy of the request."""
        op = step.op
        if step.answer["ok"]:
            origin = self.requests[op.get("source", op.get("request"))]
            end = op.get("to", origin.computed)
            tokens = (origin.tokens + origin.drafts)[:end] + tuple(op["tokens"])
            request = Request(origin.namespace, tokens, (), end, end)
            self.put(op.get("target", op.get("request")), request, step.tags)

    write_rewind = write_fork

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.step and "detour" not in self.requests

    def list_detours(self, step: Step) -> Sequence[str]:
        few = len(self.requests) < 4
        return ["another request whose tokens cannot be hit"] if few else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        builder.play(step, "open tokens=[1,2,3] namespace=detour", request="detour")
        builder.play(step, "schedule count=2; free reuse=false", request="detour")

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives a program that computes all tokens of the requests in one step, with
        full attention and without reuse."""
        if step.name != "run":
            return None
        requests = [self.requests[name] for name in self.step]
        builder = Builder(
            self.program,
            kind="paged-full",
            groups=[{"type": "full", "block": 1, "layers": 1}],
            blocks=256,
            hash_block=None,
            prefix_cache=False,
            lookahead=0,
        )
        for name, request in zip(self.step, requests, strict=True):
            tokens = (request.tokens + request.drafts)[: request.end]
            ends = range(1, request.end + 1)
            tags = [self.known[request.namespace, tokens[:end]] for end in ends]
            opened = {"tokens": [*tokens], "namespace": request.namespace}
            builder.add({"op": "open", "request": name, **opened}, tags)
            builder.add({"op": "schedule", "request": name, "count": request.end})

        def view(answer: Answer) -> Answer:
            pairs = zip(requests, answer.get("caches", ()), strict=False)
            caches = [
                hide(group, request.computed, seen["slots"])
                for request, seen in pairs
                for group in self.config["groups"]
            ]
            return {"caches": caches}

        builder.claim(step, builder.add({"op": "run"}), view=view)
        return builder.build("full attention over the same tokens")


FAMILIES = dict.fromkeys(CONTRACTS["paged"].kinds, Family(PagedShadow))
