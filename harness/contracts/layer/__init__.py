"""The layer contract: one sequence, one cache per layer; kinds kv, rotating and state.

`model`: the config, and the reference model of a program. `tokens`, `snapshots`: one
class for each operation. `states`: the abstract states that generation should reach.
`domain`: small worlds. `system`: a backend's side. `simpler`: rules for shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.layer.domain import get_domain
from lockstep.harness.contracts.layer.operations import OPERATIONS
from lockstep.harness.contracts.layer.sides import (
    CONFIG,
    LONG_REACH,
    LayerModel,
    LayerSystem,
    why_not_config,
)
from lockstep.harness.contracts.layer.simpler import LETTERS, merge_updates, simplify
from lockstep.harness.contracts.layer.states import (
    STATES,
    get_layer_states,
    list_layer_states,
    list_unreachable,
)
from lockstep.harness.contracts.operation import Op, Source

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
"""After each operation, those that use what it made, or put it to the test: chance alone
seldom draws one after the other."""

FOLLOW = 3
"""One operation in three is drawn from NEXT."""

LONG = 32
"""One program in 32 is a long one."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "window": (4, 1, 2, 3, 5, 8, 4, 1, 2, 3, 5, 8, 16, 33),
    "step": (4, 1, 2, 3, 8, 256),
    "heads": (1, 2, 3, 1, 2, 4, 1, 8),
    "key_dim": (4, 6, 8),
    "value_dim": (4, 6, 0),
    "conv_width": (4, 2, 3),
    "dtype": ("float32", "float16", "bfloat16"),
}


class LayerContract(Contract):
    name = "layer"
    kinds = ("kv", "rotating", "state")
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset({"keep", "chunk", "mask_padding", "mask_form"})
    operations = OPERATIONS
    required = ("update",)
    states = STATES
    facts = ("offset",)
    letters = LETTERS
    model = LayerModel
    why_not = staticmethod(why_not_config)
    get_states = staticmethod(get_layer_states)
    list_states = staticmethod(list_layer_states)
    list_unreachable = staticmethod(list_unreachable)
    merge_operations = staticmethod(merge_updates)
    simplify = staticmethod(simplify)
    get_domain = staticmethod(get_domain)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        masked, recurrent = ["make_mask", "update"], ["read", "boundaries", "write"]
        own = recurrent if kind == "state" else masked
        return own + super().list_methods(kind, operations)

    def list_options(
        self, name: str, config: Mapping[str, Any], declared: Kind
    ) -> Sequence[Any]:
        kind, options = config["kind"], super().list_options(name, config, declared)
        if name == "window" and kind != "rotating":
            return ()
        if name == "value_dim" and kind == "state":
            return [dim for dim in options if dim]
        if name == "keep":
            return [keep for keep in options if keep < (config["window"] or 0)]
        return options

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
        """The only misuse is to take back a negative number of tokens."""
        trim = self.operations["trim"]
        return trim.draw_misuse(source, model) if "trim" in operations else None

    def open_system(
        self, backend: Backend, config: Mapping[str, Any], ops: Sequence[Op], every: bool
    ) -> LayerSystem:
        tags = self.count_tokens(ops)
        system = LayerSystem(backend, config, tags, every, writes=self.writes)
        system.get("a")
        return system

    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        dims = [config["key_dim"], config["value_dim"] or config["key_dim"]]
        return int(min(dims))


LAYER = LayerContract()
