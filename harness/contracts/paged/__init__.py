"""The paged contract: requests whose K and V lie in blocks, behind tables.

`model`: the config and the reference side. `base`, `operations`, `branches`: one class
for each operation. `system`: the side of a backend, and the memory that its tables name.
`reading`: its answers in the right form. `checks`: what holds after every operation.
`states`: the abstract states. `drawn`, `domain`: what is drawn, and small worlds.
`shrinking`: simpler programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.paged import TELLS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.paged.domain import get_domain
from lockstep.harness.contracts.paged.drawn import CHOICES, FEW_BLOCKS, GROUPS
from lockstep.harness.contracts.paged.model import (
    CONFIG,
    FACTS,
    KINDS,
    PagedModel,
    why_illegal_config,
)
from lockstep.harness.contracts.paged.operations import OPERATIONS
from lockstep.harness.contracts.paged.shrinking import (
    LETTERS,
    merge,
    propose_configs,
    simplify,
)
from lockstep.harness.contracts.paged.states import (
    STATES,
    get_states,
    list_states,
    list_unreachable,
)
from lockstep.harness.contracts.paged.system import PagedSystem

NEXT: Mapping[str, Sequence[str]] = {
    "open": ("schedule", "schedule", "match"),
    "schedule": ("run", "schedule", "run", "preempt"),
    "run": ("accept", "accept", "schedule", "rewind", "fork"),
    "accept": ("schedule",),
    "preempt": ("schedule", "match", "evict"),
    "free": ("open", "schedule", "evict"),
    "fork": ("schedule",),
    "rewind": ("schedule",),
    "evict": ("schedule", "match", "open"),
    "reset": ("schedule", "match"),
}
"""See `Contract.next`."""


class PagedContract(Contract):
    name = "paged"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset({"hash_block", "drop_last", "aligned", "data", "scope"})
    operations = OPERATIONS
    required = ("open", "schedule", "run", "free")
    states = STATES
    tells = TELLS
    facts: ClassVar[Mapping[str, str]] = FACTS
    next = NEXT
    letters = LETTERS
    model = PagedModel
    leaves_choices = True
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    list_states = staticmethod(list_states)
    list_unreachable = staticmethod(list_unreachable)
    merge_operations = staticmethod(merge)
    propose_configs = staticmethod(propose_configs)
    get_domain = staticmethod(get_domain)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        return [*super().list_methods(kind, operations), "tables", "copies"]

    def list_told(self, config: Config, tells: Iterable[str]) -> list[str]:
        """Without K and V there is no attention; "reuse" is about the entries."""
        names = {"entries" if one == "reuse" else one for one in tells}
        return sorted(names if config["data"] == "backend" else names - {"attend"})

    def get_tag_dimension(self, config: Config) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Config) -> int:
        return sum(group["layers"] for group in config["groups"])

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if name == "groups":
            return declared.config.get(name, GROUPS[config["kind"]])
        options = super().list_options(name, config, declared)
        types = {group["type"] for group in config["groups"]}
        if name == "blocks" and types == {"state"} and options == CHOICES[name]:
            return FEW_BLOCKS
        if name == "lookahead" and "state" in types:
            return (0,)
        if name == "aligned" and "state" not in types:
            return (False,)
        if name == "hash_block":
            blocks = [group["block"] for group in config["groups"]]
            return [
                one
                for one in options
                if one is None or all(block % one == 0 for block in blocks)
            ]
        return options

    def open_cache(self, backend: Backend, config: Config) -> Any:
        tells: frozenset[str] = frozenset()
        return backend.open({**config, "poison": backend.poison, "tells": tells})

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> PagedSystem:
        declared = backend.contracts["paged"][config["kind"]]
        return PagedSystem(backend, declared, config, self.count_tags(ops), every)

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        return simplify(ops, OPERATIONS)


PAGED = PagedContract()
