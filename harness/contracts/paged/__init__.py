"""The paged contract: requests whose K and V are in blocks that tables list.

* `model` defines the config and the reference model.
* `base`, `operations`, `branches`, `transfers` and `handover` define one class for each
  operation.
* `system` runs a backend; `contents` keeps the contents of its blocks.
* `reading` reads the backend's reports, rejects malformed reports, and formats tables.
* `checks` defines the checks after every operation.
* `states` defines the abstract states.
* `domain` defines the drawn configs and the small domains for `explore`.
* `rewrites` yields simpler programs for shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.paged import TELLS, PagedCache
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Cell, Config, Op, Source
from lockstep.harness.contracts.paged.domain import (
    CHOICES,
    FEW_BLOCKS,
    FOR_DRAFTS,
    TREE_DRAFTS,
    get_domain,
    list_models,
)
from lockstep.harness.contracts.paged.model import (
    CONFIG,
    FACTS,
    KINDS,
    PagedModel,
    can_lag,
    list_groups,
    why_illegal_config,
)
from lockstep.harness.contracts.paged.operations import OPERATIONS, propose_overlap
from lockstep.harness.contracts.paged.rewrites import (
    LETTERS,
    REWRITES,
    merge,
    propose_configs,
)
from lockstep.harness.contracts.paged.states import (
    RARE,
    TABLE,
    can_have,
    get_states,
    is_of_transfers,
    list_features,
)
from lockstep.harness.contracts.paged.system import PagedSystem
from lockstep.harness.contracts.paged.transfers import propose_next

NEXT: Mapping[str, Sequence[str]] = {
    "open": ("schedule", "schedule", "match", "load", "receive"),
    "schedule": ("run", "launch", "launch", "schedule", "run", "preempt"),
    "launch": (
        *("schedule", "schedule", "preempt", "free", "offload", "finish", "load"),
        "update_weights",
    ),
    "run": ("accept", "accept", "schedule", "rewind", "fork", "offload", "send"),
    "finish": ("accept", "schedule", "launch", "rewind", "fork", "offload"),
    "accept": ("schedule", "schedule", "send"),
    "preempt": ("schedule", "match", "evict", "load"),
    "free": ("open", "schedule", "evict", "save", "reset"),
    "fork": ("schedule",),
    "rewind": ("schedule",),
    "evict": ("schedule", "match", "open", "load", "load"),
    "reset": ("schedule", "match"),
    "update_weights": ("schedule", "run", "finish", "accept", "open", "free", "landed"),
    "offload": ("landed", "landed", "failed", "free", "preempt"),
    "load": ("landed", "landed", "failed", "free", "preempt"),
    "send": ("free", "free", "schedule", "landed", "preempt", "failed", "rewind"),
    "receive": ("landed", "landed", "open", "failed", "free", "preempt"),
    "landed": ("schedule", "evict", "free", "preempt"),
    "failed": ("match", "schedule", "load"),
    "save": ("restore",),
    "restore": ("open",),
}
"""See `Contract.next`."""


class PagedContract(Contract):
    name = "paged"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    rare = RARE
    opt_in = frozenset(
        {"hash_block", "drop_last", "host", "aligned", "admits", "preempts", "data"}
        | {"extra_keys", "flight", "interleave", "lags", "ranks", "reads", "remote"}
        | {"ahead", "overlap", "scope", "trees"}
    )
    operations = OPERATIONS
    required = ("open", "schedule", "run", "free")
    without_attention = ("paged-state",)
    table = TABLE
    tells = TELLS
    facts: ClassVar[Mapping[str, str]] = FACTS
    next = NEXT
    letters = LETTERS
    model = PagedModel
    system = PagedSystem
    rewrites = REWRITES
    interfaces: ClassVar[Mapping[str, type]] = dict.fromkeys(KINDS, PagedCache)
    heeded: ClassVar[Mapping[str, Sequence[str]]] = dict.fromkeys(
        KINDS, ("groups", "blocks", "max_length", "prefix_cache")
    )
    settings: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hash_block": (None, 1, 2),
        "drop_last": (False, True),
        "trees": (False, True),
        "extra_keys": (False, True),
        "host": (0, 4),
        "flight": (0, 2),
        "remote": (False, True),
    }
    leaves_choices = True
    depth = 3
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    list_features = staticmethod(list_features)
    merge_operations = staticmethod(merge)
    propose_configs = staticmethod(propose_configs)
    get_domain = staticmethod(get_domain)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        return [*super().list_methods(kind, operations), "tables", "copies"]

    def list_told(self, config: Config, tells: Iterable[str]) -> list[str]:
        """Lists the methods that a cache of `config` needs for the declared `tells`.

        "reuse" needs `entries`. `attend` is not needed if the harness holds K and V,
        `slots` if there is one rank, `host_entries` if there are no host blocks.
        """
        names = {"entries" if name == "reuse" else name for name in tells}
        names -= {"attend"} if config["data"] == "tags" else set()
        names -= {"slots"} if config["ranks"] == 1 else set()
        return sorted(names if config["host"] else names - {"host_entries"})

    def can_be_special(self, config: Config) -> bool:
        return config["data"] == "backend" and super().can_be_special(config)

    def get_tag_dimension(self, config: Config) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Config) -> int:
        return len(list_groups(config)) + len(config["reads"])

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if name == "groups":
            return list_models(config["kind"], declared.config)
        if name == "lags":
            return (can_lag(config),)
        options = super().list_options(name, config, declared)
        types = {group["type"] for group in config["groups"]}
        if name == "blocks" and "state" in types and options == CHOICES[name]:
            few = FEW_BLOCKS if types == {"state"} else options
            return (*few, *FOR_DRAFTS * any(declared.config.get("lookahead", ())))
        if name == "lookahead" and "state" in types:
            return declared.config.get(name, (0,))
        drafts = declared.config.get("lookahead", TREE_DRAFTS)
        branching = [item for item in drafts if item > 1]
        if name == "trees" and not (types == {"full"} and branching):
            return (False,)
        if name == "lookahead" and config["trees"]:
            return branching
        if name == "aligned" and "state" not in types:
            return (False,)
        if name == "overlap" and not config["flight"]:
            return (False,)
        if name == "remote" and config["data"] == "backend":
            return (False,)
        if name in ("ranks", "interleave", "reads"):
            return [
                item for item in options if not self.why_illegal({**config, name: item})
            ]
        if name == "hash_block":
            blocks = [group["block"] for group in config["groups"]]
            return [
                item
                for item in options
                if item is None or all(block % item == 0 for block in blocks)
            ]
        return options

    def draw_operation(
        self, source: Source, model: PagedModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an operation; if `goes_far`, two of three draws lead to a `load`.

        A load needs a sequence of seven operations, which random choice rarely draws.
        """
        if model.goes_far and source.below(8 if model.is_bound else 3):
            names = (*propose_next(model), *("finish" for _ in model.flights))
            steps = ["launch", "finish"] if model.flights else ["run", "launch"]
            if model.is_bound and not model.away:
                del steps[1]
            expanded = [steps if name == "run" else [name] for name in names]
            following = [name for group in expanded for name in group]
            operations = [name for name in following if name in operations] or operations
        elif model.config["overlap"] and source.below(2):
            following = [name for name in propose_overlap(model) if name in operations]
            operations = following or operations
        return super().draw_operation(source, model, operations)

    def is_bound(self, model: PagedModel) -> bool:
        return model.is_bound

    def choose_cells(self, model: PagedModel, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Lists the cells of transfers if `goes_far`, else all remaining cells."""
        wanted = [cell for cell in cells if is_of_transfers(*cell) == model.goes_far]
        if len(wanted) == len(cells):
            return cells
        wanted = [cell for cell in wanted if can_have(cell[0], model.config)]
        return super().choose_cells(model, wanted)

    def draw_reach(self, source: Source, model: PagedModel) -> None:
        host, blocks = model.config["host"], model.config["blocks"]
        needed = model.count_whole(model.whole)
        if host and model.config["prefix_cache"]:
            is_roomy = needed <= host and 3 * needed + len(model.blocks) <= blocks
            model.goes_far = source.below(8) < (7 if is_roomy else 3)

    def propose_misuse(
        self, source: Source, model: PagedModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an invalid call, or None.

        While a request waits for a transfer, three of four draws use `schedule` or
        `load`. Otherwise, if `goes_far`, three of four draws return None.
        """
        if any(item.awaited for item in model.cache.requests.values()):
            if source.below(4):
                operations = [item for item in ("schedule", "load") if item in operations]
        elif model.goes_far and len(operations) > 1 and source.below(4):
            return None
        return super().propose_misuse(source, model, operations)

    def open_cache(self, backend: Backend, config: Config) -> Any:
        tells: frozenset[str] = frozenset()
        return backend.open({**config, "poison": backend.poison, "tells": tells})


PAGED = PagedContract()
