"""The layer contract: one sequence, one cache per layer; kinds kv, rotating, state and
pooled.

* `model` defines the config and the reference model.
* `system` runs a backend; `pooled` identifies the entries of a pooled cache.
* `operations` defines one class for each operation.
* `states` defines the abstract states.
* `rewrites` yields simpler programs for shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.interface import LayerCache, StateCache
from lockstep.harness.contracts.contract import Contract, Domain, read_moves
from lockstep.harness.contracts.layer.model import (
    CONFIG,
    LONG_REACH,
    POOL_FIELDS,
    LayerModel,
    why_illegal_config,
)
from lockstep.harness.contracts.layer.operations import OPERATIONS, breaks_usage
from lockstep.harness.contracts.layer.rewrites import REWRITES
from lockstep.harness.contracts.layer.states import TABLE, get_states, list_features
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.rewrites import merge_updates, name_letter
from lockstep.harness.contracts.system import Setup

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
"""See `Contract.next`."""

SIZES = ("heads", "key_dim", "value_dim", "dtype")
HEEDED: Mapping[str, Sequence[str]] = {
    "kv": SIZES,
    "rotating": ("window", *SIZES),
    "state": (*SIZES, "conv_width"),
    "pooled": (*POOL_FIELDS, *SIZES),
}
"""Kind → the config fields that a cache of this kind must respect."""

SETTINGS: Mapping[str, tuple[Any, ...]] = {"keep": (0, 1, 2), "chunk": (None, 2, 3)}

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "window": (4, 1, 2, 3, 5, 8, 4, 1, 2, 3, 5, 8, 16, 33),
    "pool": (2, 1, 3, 4, 2, 3, 4, 8),
    "overlap": (0, 1, 2, 3, 4, 8),
    "lookahead": (0, 0, 1, 2, 5),
    "step": (4, 1, 2, 3, 8, 256),
    "heads": (1, 2, 3, 1, 2, 4, 1, 8),
    "key_dim": (4, 6, 8),
    "value_dim": (4, 6, 0),
    "conv_width": (4, 2, 3),
    "dtype": ("float32", "float16", "bfloat16"),
}


OPT_IN = frozenset(
    {"keep", "record", "chunk", "mask_padding", "mask_form", "variant", "scope"}
)


def restrict_options(
    name: str, kind: str, config: Config, options: Sequence[Any]
) -> Sequence[Any]:
    """Returns the values of a field without those that a kind of cache cannot have.

    Args:
        name: the field.
        kind: a kind of the contract.
        config: the partial config; all fields before `name` are drawn.
        options: the values to choose from.
    """
    if (name == "window" and kind != "rotating") or (
        name in POOL_FIELDS and kind != "pooled"
    ):
        return ()
    if name == "overlap":
        return [overlap for overlap in options if overlap <= config["pool"]]
    if name == "value_dim" and kind == "state":
        return [dim for dim in options if dim]
    if name == "keep":
        return [keep for keep in options if keep < (config["window"] or 0)]
    return options


def get_tag_dimension(config: Config) -> int:
    return int(min(config["key_dim"], config["value_dim"] or config["key_dim"]))


def open_system(setup: Setup) -> LayerSystem:
    system = LayerSystem(setup)
    system.get("a")
    return system


TINY = read_moves(
    "update length=1 cache=a; update length=3 cache=a; trim count=1; state;"
    " clone cache=a into=b; update length=1 cache=b;"
    " snapshot from=0 into=s0 cache=a; restore snapshot=s0 target=1 cache=a"
)
SMALL = TINY + read_moves(
    "clone cache=b into=a; free; snapshot from=1 into=s1 cache=a;"
    " restore snapshot=s1 target=2 cache=a; restore snapshot=null target=1 cache=a;"
    " split snapshot=s0 at=1 parent=s0 child=s1; merge parent=s0 child=s1 into=s0;"
    ' close snapshot=s0; prepare offsets=[2]; take into=["s1"]'
)
DOMAIN_CONFIG: Mapping[str, Sequence[Any]] = {
    "step": [2],
    "window": [2],
    "chunk": [None, 2],
    "pool": [2],
    "overlap": [1, 0],
    "lookahead": [1, 0],
}
DOMAINS = {
    "tiny": Domain(DOMAIN_CONFIG, TINY),
    "small": Domain(DOMAIN_CONFIG, SMALL),
}
"""The domains have no renamings: each snapshot has different moves, and cache a exists
from the start."""


class LayerContract(Contract):
    name = "layer"
    kinds = ("kv", "rotating", "state", "pooled")
    config = CONFIG
    choices = CHOICES
    opt_in = OPT_IN
    operations = OPERATIONS
    required = ("update",)
    without_attention = ("state",)
    table = TABLE
    facts = {
        "offset": "tokens in the cache",
        "begun": "the largest offset at which an update has begun since it was empty",
        "pending": "tokens behind the last full block: an update fills one if it is the"
        " first, or if it leaves `step` tokens or more pending",
        "written": "tokens written since the last trim, or since it was empty",
    }
    next = NEXT
    letters = {"cache": name_letter, "snapshot": "s{}".format}
    interfaces = {
        **dict.fromkeys(("kv", "rotating", "pooled"), LayerCache),
        "state": StateCache,
    }
    heeded = HEEDED
    counted = {"step": CHOICES["step"]}
    settings = {**SETTINGS, "mask_padding": (1, 4), "mask_form": ("any", "additive")}
    long_reach = LONG_REACH
    model = LayerModel
    system = staticmethod(open_system)
    rewrites = REWRITES
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    list_features = staticmethod(list_features)
    merge_operations = staticmethod(merge_updates)
    get_tag_dimension = staticmethod(get_tag_dimension)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        masked, recurrent = ["make_mask", "update"], ["read", "boundaries", "write"]
        needed = recurrent if kind == "state" else masked
        return needed + super().list_methods(kind, operations)

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        options = super().list_options(name, config, declared)
        return restrict_options(name, config["kind"], config, options)

    def can_be_special(self, config: Config) -> bool:
        return config["kind"] != "pooled" and super().can_be_special(config)

    def get_domain(self, kind: str, size: str) -> Domain:
        return DOMAINS[size]

    def complete_move(self, move: Op, model: LayerModel) -> Op | None:
        op = super().complete_move(move, model)
        return None if op is None or breaks_usage(op, model) else op


LAYER = LayerContract()
