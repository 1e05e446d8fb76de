"""Paged caches: the shadow state of their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
    History,
    Part,
    ShadowState,
    Step,
)
from lockstep.harness.programs.program import Program

Path = tuple[str | None, tuple[int, ...]]
"""A namespace and the tokens of a beginning."""


@dataclass(frozen=True)
class Told:
    """What the operations and answers so far say of one request."""

    namespace: str | None
    tokens: tuple[int, ...]
    drafts: tuple[int, ...] = ()
    computed: int = 0
    end: int = 0
    transfer: str | None = None
    awaited: int = 0

    @property
    def known(self) -> tuple[int, ...]:
        return self.tokens + self.drafts


@dataclass(frozen=True)
class Layers:
    """The masks of all groups, over the tokens of one request in a step."""

    groups: Sequence[Mapping[str, Any]]
    steps: Sequence[Told] = field(default_factory=tuple)

    def see(self, answer: Answer) -> Answer:
        """Makes the answer to a step of the answer that full attention gives."""
        pairs = zip(self.steps, answer.get("caches", ()), strict=False)
        return {
            "caches": [
                self.cut(one, group, seen) for one, seen in pairs for group in self.groups
            ]
        }

    def cut(self, one: Told, group: Mapping[str, Any], seen: Answer) -> Answer:
        start, slots = one.computed, seen["slots"]
        if group["type"] == "state":
            return {"state": slots[start - 1 : start] if start else []}
        first = 0
        if group["type"] == "sliding":
            first = max(0, start + 1 - group["width"])
        if group["type"] == "chunked":
            first = start // group["width"] * group["width"]
        return {"first": first, "slots": slots[first:]}


class PagedShadow(ShadowState):
    """The requests, and the tag of each content.

    Attributes:
        requests: name → what was told of it.
        step: the names of those that are scheduled.
        known: each beginning that was ever named → the tag of its last token.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.requests: dict[str, Told] = {}
        self.step: list[str] = []
        self.known: dict[Path, int] = {}

    def learn(self, one: Told, step: Step) -> None:
        """The last tokens of a request have the tags of a step, if they are new."""
        first = len(one.known) - len(step.tags)
        for place, tag in enumerate(step.tags, first + 1):
            self.known.setdefault((one.namespace, one.known[:place]), tag)

    def write_open(self, step: Step) -> None:
        op = step.op
        one = Told(op["namespace"], tuple(op["tokens"]))
        self.requests[op["request"]] = one
        self.learn(one, step)

    def write_schedule(self, step: Step) -> None:
        start, name = step.answer["start"], step.op["request"]
        if start is None:
            return
        one = self.requests[name]
        end = min(len(one.known), start + step.op["count"])
        drafts = one.drafts[: max(0, end - len(one.tokens))]
        self.requests[name] = replace(one, drafts=drafts, computed=start, end=end)
        self.step.append(name)

    def write_run(self, step: Step) -> None:
        for name in self.step:
            one = self.requests[name]
            self.requests[name] = replace(one, computed=one.end)
        self.step = []

    def write_accept(self, step: Step) -> None:
        op, one = step.op, self.requests[step.op["request"]]
        tokens = (*one.tokens, *one.drafts[: op["kept"]], op["sampled"])
        end = len(tokens) - 1
        one = replace(
            one, tokens=tokens, drafts=tuple(op["drafts"]), computed=end, end=end
        )
        self.requests[op["request"]] = one
        self.learn(one, step)

    def write_preempt(self, step: Step) -> None:
        name = step.op["request"]
        one = self.requests[name]
        self.requests[name] = Told(one.namespace, one.tokens)
        self.step = [other for other in self.step if other != name]

    def write_free(self, step: Step) -> None:
        name = step.op["request"]
        del self.requests[name]
        self.step = [other for other in self.step if other != name]

    def write_load(self, step: Step) -> None:
        end, name = step.answer["loaded"], step.op["request"]
        if end is not None:
            told = replace(self.requests[name], transfer=step.op["transfer"], awaited=end)
            self.requests[name] = told

    def write_landed(self, step: Step) -> None:
        self.write_end(step, lambda one: one.awaited)

    def write_failed(self, step: Step) -> None:
        self.write_end(step, lambda one: step.answer["kept"])

    def write_end(self, step: Step, count: Callable[[Told], int]) -> None:
        """The request that waits for a transfer has so many tokens then."""
        for name, one in self.requests.items():
            if one.transfer == step.op["transfer"]:
                end = count(one)
                self.requests[name] = Told(one.namespace, one.tokens, (), end, end)

    def write_restore(self, step: Step) -> None:
        self.requests, self.step = {}, []

    def write_fork(self, step: Step) -> None:
        if step.answer["ok"]:
            self.go_on(step, step.op["source"], step.op["target"], None)

    def write_rewind(self, step: Step) -> None:
        if step.answer["ok"]:
            name = step.op["request"]
            self.go_on(step, name, name, step.op["to"])

    def go_on(self, step: Step, source: str, target: str, to: int | None) -> None:
        """A request goes on behind the first `to` tokens of another; None for all that
        are computed."""
        one = self.requests[source]
        end = one.computed if to is None else to
        tokens = one.known[:end] + tuple(step.op["tokens"])
        self.requests[target] = Told(one.namespace, tokens, computed=end, end=end)
        self.learn(self.requests[target], step)

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.step and "detour" not in self.requests

    def rebuild(self, builder: Builder) -> bool:
        """Whether there is room depends on what came before."""
        return False

    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        return ()

    def rename(self, op: Op) -> Op:
        renamed = dict(op)
        for name in ("request", "source", "target", "transfer"):
            if name in op:
                renamed[name] = f"other-{op[name]}"
        for name in ("tokens", "drafts"):
            if name in op:
                renamed[name] = [token + 5 for token in op[name]]
        if "sampled" in op:
            renamed["sampled"] = op["sampled"] + 5
        if op.get("namespace"):
            renamed["namespace"] = f"other-{op['namespace']}"
        return renamed

    def list_detours(self, step: Step) -> Sequence[str]:
        few = len(self.requests) < 4
        return ["another request that nobody may hit"] if few else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        name = {"request": "detour"}
        tokens = {"tokens": [1, 2, 3], "namespace": "detour"}
        builder.add({"op": "open", **name, **tokens})
        builder.add({"op": "schedule", **name, "count": 2})
        builder.add({"op": "free", **name, "reuse": False})

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Computes the tokens of a step at once, with full attention and no reuse."""
        if step.name != "run":
            return None
        told = [self.requests[name] for name in self.step]
        plain = {"type": "full", "block": 1, "layers": 1}
        builder = Builder(
            history,
            kind="paged-full",
            groups=[plain],
            blocks=256,
            hash_block=None,
            prefix_cache=False,
            lookahead=0,
        )
        for name, one in zip(self.step, told, strict=True):
            tokens = one.known[: one.end]
            paths = ((one.namespace, tokens[:end]) for end in range(1, one.end + 1))
            opened = {"op": "open", "request": name, "tokens": list(tokens)}
            tags = [self.known[path] for path in paths]
            builder.add({**opened, "namespace": one.namespace}, tags)
            builder.add({"op": "schedule", "request": name, "count": one.end})
        other = builder.add({"op": "run"})
        view = Layers(self.config["groups"], told).see
        builder.claim(step, other, view=view)
        return builder.build("full attention over the same tokens")


FAMILIES: Mapping[str, Family] = dict.fromkeys(
    CONTRACTS["paged"].kinds, Family(PagedShadow)
)
