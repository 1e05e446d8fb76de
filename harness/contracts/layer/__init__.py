"""The layer contract: one sequence, one cache per layer; kinds kv, rotating and state.

`model`: the config, and the reference as the caches of a program. `operations`: one class
for each. `states`: what generation should reach. `domain`: small worlds. `subject`: a
backend's side. `simpler`: what makes a program simpler. Here: how they make a contract,
and how programs are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.base import Contract, Operation
from lockstep.harness.contracts.domain import Domain
from lockstep.harness.contracts.layer import model, operations, simpler, states
from lockstep.harness.contracts.layer.domain import DOMAINS
from lockstep.harness.contracts.layer.model import LONG_REACH, LayerModel, list_places
from lockstep.harness.contracts.layer.system import LayerSubject
from lockstep.harness.contracts.types import Held, Op, Source, Unreachable
from lockstep.harness.core.fields import Schema

WEIGHTS = {
    "update": 20,
    "restore": 5,
    "snapshot": 4,
    "trim": 3,
    "prepare": 2,
    "take": 2,
    "split": 2,
    "merge": 3,
}
"""How often an operation is drawn against the others, which have 1."""

NEXT: Mapping[str, Sequence[str]] = {
    "update": ("snapshot", "trim", "view", "state"),
    "view": ("view", "trim", "restore"),
    "state": ("state", "free"),
    "trim": ("update", "update", "view"),
    "clone": ("update", "snapshot", "trim"),
    "free": ("restore", "update"),
    "snapshot": ("trim", "restore", "split", "merge", "clone"),
    "restore": ("update", "update", "view", "split", "trim"),
    "split": ("restore", "restore", "merge"),
    "merge": ("restore",),
    "close": ("trim", "update"),
    "prepare": ("update", "restore", "trim", "prepare", "take"),
    "take": ("free", "restore", "prepare"),
}
"""What uses that which an operation has just made, or puts it to the test: chance alone
seldom does one after the other."""

FOLLOW = 3
"""One operation in so many is drawn from NEXT."""

LONG = 32
"""One program in so many is a long one."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "window": (4, 1, 2, 3, 5, 8, 4, 1, 2, 3, 5, 8, 16, 33),
    "step": (4, 1, 2, 3, 8, 256),
    "heads": (1, 2, 3, 1, 2, 4, 1, 8),
    "key_dim": (4, 6, 8),
    "value_dim": (4, 6, 0),
    "conv_width": (4, 2, 3),
    "dtype": ("float32", "float16", "bfloat16"),
}
"""What is drawn for a field of the config, the simplest first."""


class LayerContract(Contract):
    name = "layer"
    kinds = ("kv", "rotating", "state")
    config: ClassVar[Mapping[str, Schema]] = model.CONFIG
    operations: ClassVar[Mapping[str, Operation]] = operations.OPERATIONS

    states = states.STATES
    weights = WEIGHTS
    required = ("update",)
    opt_in = frozenset({"keep", "chunk", "mask_padding", "mask_form"})
    facts = ("offset",)

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        return model.why_not_config(config)

    def list_operations(self, kind: str) -> Sequence[str]:
        return [name for name in self.operations if kind != "state" or name != "size"]

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        own = (
            ["read", "boundaries", "write"]
            if kind == "state"
            else ["make_mask", "update"]
        )
        return own + [name for name in operations if name != "update"]

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        """Fields that a backend does not name take any value of CHOICES, or their
        default if they are not in it."""
        config = {name: schema.get("default") for name, schema in self.config.items()}
        config["kind"] = kind
        for name in self.config:
            options = declared.config.get(name, CHOICES.get(name, ()))
            if name == "window" and kind != "rotating":
                options = ()
            if name == "value_dim" and kind == "state":
                options = [dim for dim in options if dim]
            if name == "keep":
                options = [keep for keep in options if keep < (config["window"] or 0)]
            if options:
                config[name] = source.pick(list(options))
        return config

    def draw_operation(
        self, source: Source, model: LayerModel, operations: Sequence[str]
    ) -> Op | None:
        following = [name for name in NEXT.get(model.last, ()) if name in operations]
        if following and not source.below(FOLLOW):
            operations = following
        op = super().draw_operation(source, model, operations)
        model.last = op["op"] if op else ""
        return op

    def draw_reach(self, source: Source, model: LayerModel) -> None:
        if source.below(LONG) == LONG - 1:
            model.reach = LONG_REACH

    def propose_misuse(
        self, source: Source, model: LayerModel, operations: Sequence[str]
    ) -> Op | None:
        """To take back a negative number of tokens."""
        if "trim" not in operations:
            return None
        cache = source.pick(sorted(model.caches))
        return {"op": "trim", "count": -1 - source.below(3), "cache": cache}

    def open_model(self, config: Mapping[str, Any], rows: bool = True) -> LayerModel:
        return LayerModel(config, rows)

    def open_subject(
        self, backend: Backend, config: Mapping[str, Any], ops: Sequence[Op], every: bool
    ) -> LayerSubject:
        subject = LayerSubject(backend, config, self.count_tokens(ops), every)
        subject.get("a")
        return subject

    def get_states(self, op: Op, model: LayerModel) -> Sequence[str]:
        return states.get_layer_states(op, model)

    def get_facts(self, op: Op, model: LayerModel) -> Mapping[str, int]:
        return {"offset": model.get(op.get("cache", "a")).offset}

    def list_live(self, model: LayerModel) -> Mapping[int, int]:
        caches = model.caches.values()
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    def list_held(self, op: Op, model: LayerModel) -> Sequence[Held]:
        names = sorted(model.caches, key=lambda name: name != op.get("cache", "a"))
        return [(f"cache {name}", list_places(model.get(name))) for name in names]

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        return states.list_layer_states(kind, declared)

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        return states.UNREACHABLE

    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        dims = [config["key_dim"], config["value_dim"] or config["key_dim"]]
        return int(min(dims))

    def merge_operations(self, first: Op, second: Op) -> Op | None:
        return simpler.merge_updates(first, second)

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        return simpler.simplify(ops)

    def get_domain(self, kind: str, size: str) -> Domain:
        return DOMAINS[size]

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        return simpler.rename(ops)


LAYER = LayerContract()
