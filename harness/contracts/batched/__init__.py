"""The batched contract: several requests in one cache.

* `model` defines the config and the reference model.
* `system` runs a backend.
* `tokens` and `rows` define one class for each operation.
* `lists` supports lists: several caches for each layer.
* `states` defines the abstract states.
* `rewrites` yields simpler programs for shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.interface import (
    BatchCache,
    BatchListCache,
    BatchStateCache,
)
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.batched import rows, tokens
from lockstep.harness.contracts.batched.lists import LISTS, ListModel, ListSystem
from lockstep.harness.contracts.batched.model import (
    CONFIG,
    FACTS,
    KINDS,
    LIST,
    LONG_REACH,
    PREFIX,
    BatchedModel,
    get_open_config,
    get_single_config,
    list_part_configs,
    why_illegal_config,
)
from lockstep.harness.contracts.batched.rewrites import REWRITES, propose_configs
from lockstep.harness.contracts.batched.states import TABLE, get_states, list_features
from lockstep.harness.contracts.batched.system import BatchedSystem, Batches
from lockstep.harness.contracts.contract import Contract, Domain, read_moves
from lockstep.harness.contracts.layer import CHOICES as LAYER_CHOICES
from lockstep.harness.contracts.layer import (
    HEEDED,
    OPT_IN,
    SETTINGS,
    get_tag_dimension,
    restrict_options,
)
from lockstep.harness.contracts.operation import Config, Op, Source, index
from lockstep.harness.contracts.rewrites import join_names, merge_updates, name_letter
from lockstep.harness.contracts.system import Setup
from lockstep.harness.core.errors import UsageError

OPERATIONS = index(
    *(tokens.Open(), tokens.Update(), tokens.PadRight(), tokens.Finalize()),
    *(tokens.Trim(), tokens.Rollback(), rows.Filter(), rows.Select(), rows.Repeat()),
    *(rows.Extend(), rows.Extract(), rows.Stack(), rows.Save(), rows.Load()),
    *(rows.State(), rows.Size(), rows.Clone(), rows.Free()),
)

NEXT: Mapping[str, Sequence[str]] = {
    "open": ("update", "pad_right", "update"),
    "pad_right": ("update",),
    "update": ("trim", "rollback", "extract", "finalize"),
    "finalize": ("update", "trim", "filter", "extend"),
    "trim": ("update",),
    "rollback": ("update",),
    "filter": ("trim", "update", "extend"),
    "extend": ("update", "pad_right", "filter"),
    "extract": ("update", "stack"),
    "stack": ("update", "pad_right"),
    "clone": ("update", "trim", "size", "state"),
    "save": ("load",),
    "load": ("update", "trim", "pad_right"),
}
"""See `Contract.next`."""

MOST_DRAWN = 100
"""The maximum number of attempts to draw a legal config for a list."""

CHOICES: Mapping[str, Sequence[Any]] = {
    **LAYER_CHOICES,
    "window": (4, 1, 2, 3, 5, 8, 4, 2, 3, 5, 16, 33),
    "heads": (1, 2, 3, 1, 2, 4),
    "pads_left": (True, False),
}


TINY = read_moves(
    "open rows=2 cache=a; update length=1 left=null cache=a;"
    " update length=3 left=[0,2] cache=a; pad_right lengths=[1,2];"
    " update length=2 left=null cache=a; finalize; trim count=1; filter rows=[1]; state"
)
SMALL = TINY + read_moves(
    "open rows=1 cache=b; update length=2 left=null cache=b; extend other=b;"
    ' extract row=0 into=c; stack caches=["c"] cache=b;'
    " update length=1 left=null cache=c; rollback counts=[0,1]; repeat times=2"
)
PAIR = [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 2}]
DOMAIN_CONFIG: Mapping[str, Sequence[Any]] = {
    "step": [2],
    "window": [2],
    "chunk": [None, 2],
    "caches": [PAIR],
}
DOMAINS = {
    "tiny": Domain(DOMAIN_CONFIG, TINY),
    "small": Domain(DOMAIN_CONFIG, SMALL),
}


def open_model(config: Config, rows: bool) -> BatchedModel:
    return (ListModel if config["kind"] == LIST else BatchedModel)(config, rows)


def open_system(setup: Setup) -> Batches:
    return (ListSystem if setup.config["kind"] == LIST else BatchedSystem)(setup)


class BatchedContract(Contract):
    name = "batched"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    opt_in = OPT_IN | {"offsets", "ring"}
    operations = OPERATIONS
    required = ("open", "update")
    without_attention = ("batch-state",)
    table = TABLE
    facts = FACTS
    next = NEXT
    letters = {"cache": name_letter, "saved": "s{}".format}
    interfaces = {
        **dict.fromkeys(("batch-kv", "batch-rotating"), BatchCache),
        "batch-state": BatchStateCache,
        LIST: BatchListCache,
    }
    heeded = {
        **{f"{PREFIX}{kind}": fields for kind, fields in HEEDED.items()},
        LIST: ("parts",),
    }
    counted = {"pads_left": (True,)}
    settings = {**SETTINGS, "pads_left": (True, False)}
    long_reach = LONG_REACH
    model = staticmethod(open_model)
    system = staticmethod(open_system)
    rewrites = (join_names(OPERATIONS, "cache"), *REWRITES)
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    list_features = staticmethod(list_features)
    merge_operations = staticmethod(merge_updates)
    propose_configs = staticmethod(propose_configs)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        if kind == LIST:  # the parts of a list have these fields
            operations = [name for name in operations if name not in ("state", "size")]
            return super().list_methods(kind, operations)
        written = ["read", "write"] if kind == "batch-state" else ["update"]
        return ["make_mask", *written, *super().list_methods(kind, operations)]

    def count_layers(self, config: Config) -> int:
        return len(list_part_configs(config))

    def count_numbers(self, config: Config) -> int:
        return sum(map(super().count_numbers, list_part_configs(config)))

    def get_tag_dimension(self, config: Config) -> int:
        return min(map(get_tag_dimension, list_part_configs(config)))

    def open_cache(self, backend: Backend, config: Config) -> Any:
        config = {**config, "poison": backend.poison}
        cache = backend.open(get_open_config(config, 2, None))
        needed = ["parts"] if config["kind"] == LIST else []
        return read_object(cache, needed, "open", "a batch of lists")

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        for _ in range(MOST_DRAWN):
            config = super().draw_config(source, kind, declared)
            if kind != LIST:
                return config
            options = declared.config.get("caches", LISTS)
            drawn = [{**config, "caches": list(members)} for members in options]
            if legal := [
                candidate for candidate in drawn if self.why_illegal(candidate) is None
            ]:
                return dict(source.pick(legal))
        raise UsageError(
            f"no declared list of caches can be drawn for {kind}:"
            f" {self.why_illegal(config)}"
        )

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if name == "caches":
            return ()
        options = super().list_options(name, config, declared)
        kind = get_single_config(config)["kind"]
        return restrict_options(name, kind, config, options)

    def draw_operation(
        self, source: Source, model: BatchedModel, operations: Sequence[str]
    ) -> Op | None:
        if not model.batches:
            operations = [name for name in operations if name in ("open", "stack")]
        return super().draw_operation(source, model, operations)

    def get_domain(self, kind: str, size: str) -> Domain:
        domain = DOMAINS[size]
        if kind != LIST:
            return domain
        moves = [move for move in domain.moves if move["op"] != "size"]  # of no state
        return Domain(domain.config, moves)

    def complete_move(self, move: Op, model: BatchedModel) -> Op | None:
        op = super().complete_move(move, model)
        if op is None or self.operations[op["op"]].why_illegal(op, model):
            return op
        answer = self.operations[op["op"]].run_reference(op, deepcopy(model))
        return None if answer.get("error") == "usage" else op


BATCHED = BatchedContract()
