"""Paged caches: the shadow state of their requests."""

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
    History,
    Shadow,
    Step,
)
from lockstep.harness.programs.program import Program

Tokens = tuple[int, ...]
Path = tuple[str | None, Tokens]
"""A namespace and the tokens of a beginning."""


@dataclass(frozen=True)
class ToldRequest:
    """What the operations and answers so far say of one request."""

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


def cut(group: Mapping[str, Any], start: int, slots: Sequence[int]) -> Answer:
    """Returns what a group of layers reads in a step that begins at a position.

    Args:
        group: of the config.
        start: the position.
        slots: what full attention reads.
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
    """The requests, and the tag of each content.

    Attributes:
        requests: name → what was told of it.
        step: the names of those that are scheduled.
        known: each beginning that was ever named → the tag of its last token.
    """

    keeps = ("evict", "reset", "offload", "save")

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.requests: dict[str, ToldRequest] = {}
        self.step: list[str] = []
        self.known: dict[Path, int] = {}

    def put(self, name: str, request: ToldRequest, tags: Sequence[int] = ()) -> None:
        """Notes a request, whose last tokens have these tags, if they are new."""
        self.requests[name] = request
        first = len(request.known) - len(tags)
        for end, tag in enumerate(tags, first + 1):
            self.known.setdefault((request.namespace, request.known[:end]), tag)

    def write_open(self, step: Step) -> None:
        op = step.op
        request = ToldRequest(op["namespace"], tuple(op["tokens"]))
        self.put(op["request"], request, step.tags)

    def write_schedule(self, step: Step) -> None:
        start, name = step.answer["start"], step.op["request"]
        if start is not None:
            request = self.requests[name]
            end = min(len(request.known), start + step.op["count"])
            drafts = request.drafts[: max(0, end - len(request.tokens))]
            self.put(name, replace(request, drafts=drafts, computed=start, end=end))
            self.step.append(name)

    def write_run(self, step: Step) -> None:
        for name in self.step:
            request = self.requests[name]
            self.put(name, replace(request, computed=request.end))
        self.step = []

    def write_accept(self, step: Step) -> None:
        op, old = step.op, self.requests[step.op["request"]]
        tokens = (*old.tokens, *old.drafts[: op["kept"]], op["sampled"])
        end, drafts = len(tokens) - 1, tuple(op["drafts"])
        request = replace(old, tokens=tokens, drafts=drafts, computed=end, end=end)
        self.put(op["request"], request, step.tags)

    def write_preempt(self, step: Step) -> None:
        name, request = step.op["request"], self.requests[step.op["request"]]
        self.put(name, ToldRequest(request.namespace, request.tokens))
        self.step = [scheduled for scheduled in self.step if scheduled != name]

    def write_free(self, step: Step) -> None:
        self.write_preempt(step)
        del self.requests[step.op["request"]]

    def write_load(self, step: Step) -> None:
        end, name, transfer = (
            step.answer["loaded"],
            step.op["request"],
            step.op["transfer"],
        )
        if end is not None:
            self.put(name, replace(self.requests[name], transfer=transfer, awaited=end))

    def write_landed(self, step: Step) -> None:
        """Sets how many tokens the request that waits for a transfer has computed."""
        for name, request in self.requests.items():
            if request.transfer == step.op["transfer"]:
                end = step.answer.get("kept", request.awaited)
                fields = {"computed": end, "end": end}
                self.put(name, ToldRequest(request.namespace, request.tokens, **fields))

    write_failed = write_landed

    def write_restore(self, step: Step) -> None:
        self.requests, self.step = {}, []

    def write_fork(self, step: Step) -> None:
        """A request goes on behind the first tokens of another, or of itself."""
        op = step.op
        if step.answer["ok"]:
            origin = self.requests[op.get("source", op.get("request"))]
            end = op.get("to", origin.computed)
            tokens = origin.known[:end] + tuple(op["tokens"])
            request = ToldRequest(origin.namespace, tokens, computed=end, end=end)
            self.put(op.get("target", op.get("request")), request, step.tags)

    write_rewind = write_fork

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.step and "detour" not in self.requests

    def list_detours(self, step: Step) -> Sequence[str]:
        few = len(self.requests) < 4
        return ["another request that nobody may hit"] if few else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        builder.play(step, "open tokens=[1,2,3] namespace=detour", request="detour")
        builder.play(step, "schedule count=2; free reuse=false", request="detour")

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Computes the tokens of a step at once, with full attention and no reuse."""
        if step.name != "run":
            return None
        requests = [self.requests[name] for name in self.step]
        plain = {"type": "full", "block": 1, "layers": 1}
        changes: dict[str, Any] = {"groups": [plain], "blocks": 256, "hash_block": None}
        changes |= {"prefix_cache": False, "lookahead": 0}
        builder = Builder(history, kind="paged-full", **changes)
        for name, request in zip(self.step, requests, strict=True):
            tokens = request.known[: request.end]
            ends = range(1, request.end + 1)
            tags = [self.known[request.namespace, tokens[:end]] for end in ends]
            opened = {"tokens": [*tokens], "namespace": request.namespace}
            builder.add({"op": "open", "request": name, **opened}, tags)
            builder.add({"op": "schedule", "request": name, "count": request.end})

        def view(answer: Answer) -> Answer:
            pairs = zip(requests, answer.get("caches", ()), strict=False)
            groups = self.config["groups"]
            read = [(request.computed, seen["slots"]) for request, seen in pairs]
            return {
                "caches": [cut(group, *read_of) for read_of in read for group in groups]
            }

        builder.claim(step, builder.add({"op": "run"}), view=view)
        return builder.build("full attention over the same tokens")


FAMILIES: Mapping[str, Family] = dict.fromkeys(
    CONTRACTS["paged"].kinds, Family(PagedShadow)
)
