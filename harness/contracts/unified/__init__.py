"""The unified contract: many sequences in one pool, positions chosen by the caller.

`model`: the config, and the reference as the cache of a program. `forward`, `operations`:
one class for each operation. `misuse`: those that must be refused. `states`: what
generation should reach. `domain`: small worlds. `subject`, `reader`, `turning`: a
backend's side. `simpler`: what makes a program simpler. Here: how they make a contract,
and how programs are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.base import Contract, Operation
from lockstep.harness.contracts.domain import Domain
from lockstep.harness.contracts.types import Held, Op, Source, Unreachable
from lockstep.harness.contracts.unified import (
    domain,
    misuse,
    model,
    operations,
    simpler,
    states,
)
from lockstep.harness.contracts.unified.forward import list_places
from lockstep.harness.contracts.unified.model import CAUSAL, UnifiedModel
from lockstep.harness.contracts.unified.system import UnifiedSubject
from lockstep.harness.core.fields import Schema

WEIGHTS = {
    "forward": 16,
    "remove": 7,
    "copy_prefix": 3,
    "can_resume": 2,
    "save": 2,
    "load": 3,
}
"""How often an operation is drawn against the others, which have 1."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "window": (2, 1, 3, 4, 5, 8, 2, 1, 3, 4, 16, 0),
    "memory": (0, 1, 2, 3, 5, 8, 40, None),
    "chunk": (2, 1, 3, 4, 5, 8, 2, 3, 4, 0),
    "sequences": (1, 2, 3, 4, 2, 3, 1, 2, 3, 4, 2, 3, 9),
    "capacity": (8, 3, 4, 5, 6, 8, 10, 12, 16, 24, 40),
    "batch": (4, 1, 2, 3, 5, 8, 16),
    "slots": (None, 1, 2, 3),
    "interval": (None, 1, 2, 3, 5),
    "checkpoints": (1, 2, 3, 8),
    "layers": (1, 2, 1, 3),
    "heads": (1, 2, 1, 3),
    "key_dim": (4, 6, 8),
    "value_dim": (4, 3, 6, 8),
    "conv_width": (4, 2, 3),
    "rope_bases": ([10_000], [10_000, 500_000], [100, 10_000, 7]),
    "dtype": ("float32", "float16", "bfloat16"),
    "mask_dtype": ("float32", "float16", "bfloat16"),
    "cache_padding": (1, 2, 4, 1, 32),
    "mask_padding": (1, 2, 4, 1, 32),
    "permuted_values": (False, True),
    "shift": (True, True, True, False),
}
"""What is drawn for a field of the config, the simplest first. "memory" is drawn as what
it exceeds the window by; None for no limit."""

LONG = 32
FAR: Sequence[Mapping[str, int]] = (
    {"sequences": 1, "capacity": 300, "batch": 24},
    {"sequences": 32, "capacity": 5, "batch": 8},
    {"sequences": 3, "capacity": 90, "batch": 32},
)
"""One program in so many is one of these: past the sizes at which arrays of metadata
grow, or with many sequences."""

PAIRS: Sequence[Sequence[Mapping[str, Any]]] = (
    ({"kind": "causal"}, {"kind": "swa", "window": 2}),
    ({"kind": "causal"}, {"kind": "causal", "capacity": 4}),
    ({"kind": "swa", "window": 3}, {"kind": "causal"}),
    ({"kind": "encoder"}, {"kind": "causal"}),
    ({"kind": "causal"}, {"kind": "recurrent"}),
    ({"kind": "swa-memory", "window": 1, "memory": 4}, {"kind": "chunked", "chunk": 3}),
    ({"kind": "encoder"}, {"kind": "swa", "window": 4}, {"kind": "causal"}),
    ({"kind": "recurrent"}, {"kind": "swa", "window": 2}),
    ({"kind": "causal"}, {"kind": "swa", "window": 1}, {"kind": "chunked", "chunk": 2}),
    ({"kind": "causal"}, {"kind": "encoder"}),
)
"""The caches of a wrapper, as models combine them."""


class UnifiedContract(Contract):
    name = "unified"
    kinds = (*CAUSAL, "encoder", "wrapper", "recurrent")
    config: ClassVar[Mapping[str, Schema]] = model.CONFIG
    operations: ClassVar[Mapping[str, Operation]] = operations.OPERATIONS
    weights = WEIGHTS
    required = ("forward",)
    states = states.STATES
    opt_in = frozenset(
        {"layers", "cache_padding", "mask_padding", "mask_dtype", "permuted_values"}
    )
    errors = ("cache-full", "not-supported", "shared")
    facts = ("room", "rows")

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        return model.why_not_config(config)

    def list_operations(self, kind: str) -> Sequence[str]:
        absent = set() if kind in CAUSAL else {"save", "load"}
        absent |= set() if kind == "swa-memory" else {"open"}
        return [name for name in self.operations if name not in absent]

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        own = ["of"] if kind == "wrapper" else ["put", "get"]
        if kind == "recurrent":
            own += ["read_states", "write_states"]
        return own + [name for name in operations if name not in ("put", "get", "open")]

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        """Fields that a backend does not name take any value of CHOICES, or their
        default if they are not in it."""
        config: dict[str, Any] = {
            name: schema.get("default") for name, schema in self.config.items()
        }
        config["kind"] = kind
        for name in self.config:
            if not belongs(name, config):
                continue
            chosen = () if name in self.opt_in else CHOICES.get(name, ())
            options = declared.config.get(name, chosen)
            if options:
                config[name] = source.pick(list(options))
            if name == "memory" and name not in declared.config:
                config[name] = add_limits(config["window"], config["memory"])
        if source.below(LONG) == LONG - 1:
            far = source.pick(FAR)
            config |= {name: far[name] for name in far if name not in declared.config}
        if kind == "wrapper":
            config["caches"] = self.draw_caches(source, config, declared)
            config = drop_slots(config)
        return config

    def draw_caches(
        self, source: Source, config: Mapping[str, Any], declared: Kind
    ) -> Sequence[Mapping[str, Any]]:
        """Those that keep the rules between the fields."""
        options = declared.config.get("caches", PAIRS)
        fitting = [
            caches
            for caches in options
            if self.why_not(drop_slots({**config, "caches": caches})) is None
        ]
        return list(source.pick(fitting or list(options)))

    def draw_reach(self, source: Source, model: UnifiedModel) -> None:
        """How far a program goes is in its config: the capacity bounds it."""

    def propose_misuse(
        self, source: Source, model: UnifiedModel, operations: Sequence[str]
    ) -> Op | None:
        return misuse.draw_misuse(source, model, operations)

    def open_model(self, config: Mapping[str, Any], rows: bool = True) -> UnifiedModel:
        return UnifiedModel(config, rows)

    def open_subject(
        self, backend: Backend, config: Mapping[str, Any], ops: Sequence[Op], every: bool
    ) -> UnifiedSubject:
        tags, places = self.count_tokens(ops), list_places(ops)
        return UnifiedSubject(backend, config, tags, every, places)

    def get_states(self, op: Op, model: UnifiedModel) -> Sequence[str]:
        return states.get_unified_states(op, model)

    def get_facts(self, op: Op, model: UnifiedModel) -> Mapping[str, int]:
        return {"room": model.get_room(), "rows": len(op.get("positions", ()))}

    def list_live(self, model: UnifiedModel) -> Mapping[int, int]:
        return model.list_live()

    def list_held(self, op: Op, model: UnifiedModel) -> Sequence[Held]:
        return model.list_held()

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        return states.list_unified_states(kind, declared)

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        return states.list_unreachable(kind, declared)

    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        """Tags are read from values: keys depend on positions."""
        return int(config["value_dim"])

    def merge_operations(self, first: Op, second: Op) -> Op | None:
        return simpler.merge_passes(first, second)

    def fit_config(self, config: Mapping[str, Any], op: Op) -> Mapping[str, Any]:
        rows = len(op["positions"])
        return {**config, "batch": max(config["batch"], rows)}

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        return simpler.simplify(ops)

    def propose_configs(
        self, config: Mapping[str, Any], ops: Sequence[Op]
    ) -> Iterator[tuple[Mapping[str, Any], Sequence[Op]]]:
        return simpler.simplify_config(config, ops)

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        return simpler.rename(ops)

    def get_domain(self, kind: str, size: str) -> Domain:
        return domain.get_domain(kind, size)

    def complete_move(self, move: Op, model: UnifiedModel) -> Op | None:
        """Rows of a pass stand at the next positions of their sequences."""
        op = {**self.operations[move["op"]].get_defaults(), **move}
        if op["op"] == "forward":
            rows = enumerate(op["sequences"])
            op["positions"] = [
                model.get_end(sequence) + op["sequences"][:row].count(sequence)
                for row, sequence in rows
            ]
        return op


BELONGS = {
    "window": ("swa", "swa-memory"),
    "memory": ("swa-memory",),
    "chunk": ("chunked",),
    "slots": ("recurrent", "wrapper"),
    "interval": ("recurrent", "wrapper"),
    "checkpoints": ("recurrent", "wrapper"),
    "caches": (),
}
"""The kinds that have a field; all, if it does not stand here."""


def belongs(name: str, config: Mapping[str, Any]) -> bool:
    return name not in BELONGS or config["kind"] in BELONGS[name]


def add_limits(window: int, more: int | None) -> int:
    """A memory; 0 for no limit, as for the window."""
    return 0 if more is None or window == 0 else window + more


def drop_slots(config: dict[str, Any]) -> dict[str, Any]:
    """What belongs to recurrent caches only stays if there is one."""
    if any(cache["kind"] == "recurrent" for cache in config["caches"]):
        return config
    return {**config, "slots": None, "interval": None, "checkpoints": 1}


UNIFIED = UnifiedContract()
