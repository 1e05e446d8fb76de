"""The unified contract: many sequences in one pool; the caller chooses the positions.

* `model` defines the config and the reference model of a program.
* `forward` and `operations` define one class for each operation.
* `states` defines the abstract states from which coverage is counted.
* `system` and `reader` run a backend and read its answers.
* `rewrites` yields simpler programs for shrinking.
* `domain` defines the small domains for `explore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.interface import UnifiedCache
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op, Source
from lockstep.harness.contracts.unified.domain import get_domain
from lockstep.harness.contracts.unified.model import (
    CAUSAL,
    CONFIG,
    MAY_HAVE,
    SIMPLE,
    UnifiedModel,
    why_illegal_config,
)
from lockstep.harness.contracts.unified.operations import OPERATIONS
from lockstep.harness.contracts.unified.rewrites import (
    LETTERS,
    REWRITES,
    merge_passes,
    propose_configs,
)
from lockstep.harness.contracts.unified.states import TABLE, get_states, list_features
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.document import MAX_POSITION

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
"""Config field → the values that the generator draws. The values of "memory" are the
excess over the window; None stands for no limit."""

STATEFUL: Mapping[str, Sequence[Any]] = {
    "sequences": (1, 2, 3, 4, 5, 6, 4, 9),
    "slots": (None, 1, 2, 3, None, None),
}
"""Config field → the values drawn for recurrent caches; with many sequences, one pass can
separate several shared states."""

LONG = 32
FAR: Sequence[Mapping[str, int]] = (
    {"sequences": 1, "capacity": 300, "batch": 24},
    {"sequences": 64, "capacity": 5, "batch": 8},
    {"sequences": 3, "capacity": 90, "batch": 32},
    {"sequences": 1, "capacity": 300, "batch": 24},
    {"sequences": 64, "capacity": 5, "batch": 8},
    {"sequences": 2, "capacity": 160, "batch": 130},
)
"""Every 32nd program, on average, has one of these configs: so large that metadata arrays
grow, with many sequences, or with prompts so long that masks are made differently."""

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
"""The caches of a wrapper, in combinations that real models use."""


POOL = (
    *("sequences", "capacity", "batch", "heads", "key_dim", "value_dim", "dtype"),
    *("rope_bases", "shift"),
)
HEEDED: Mapping[str, Sequence[str]] = {
    "causal": POOL,
    "swa": ("window", *POOL),
    "swa-memory": ("window", "memory", *POOL),
    "chunked": ("chunk", *POOL),
    "encoder": POOL,
    "recurrent": (*POOL, "slots", "interval", "checkpoints", "conv_width"),
}
"""Kind → the config fields that a cache of this kind must respect."""


class UnifiedContract(Contract):
    name = "unified"
    kinds = (*CAUSAL, "encoder", "wrapper", "recurrent")
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset(
        {
            *("layers", "cache_padding", "mask_padding", "mask_dtype"),
            *("permuted_values", "small", "variant", "at_once", "scope", "sections"),
        }
    )
    operations = OPERATIONS
    required = ("forward",)
    without_attention = ("encoder",)
    table = TABLE
    errors = ("cache-full", "not-supported", "shared")
    facts: ClassVar[Mapping[str, str]] = {
        "room": "free cells",
        "rows": "rows of a forward",
    }
    letters = LETTERS
    interfaces: ClassVar[Mapping[str, type]] = dict.fromkeys(SIMPLE, UnifiedCache)
    heeded = HEEDED
    settings: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "layers": (1, 2, 3),
        "cache_padding": (1, 4, 32),
        "mask_padding": (1, 4, 32),
        "mask_dtype": ("float32", "float16", "bfloat16"),
        "permuted_values": (False, True),
    }
    model = UnifiedModel
    system = UnifiedSystem
    rewrites = REWRITES
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    list_features = staticmethod(list_features)
    merge_operations = staticmethod(merge_passes)
    propose_configs = staticmethod(propose_configs)
    get_domain = staticmethod(get_domain)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        needed = ["of"] if kind == "wrapper" else ["put", "get"]
        if kind == "recurrent":
            needed += ["read_states", "write_states"]
        return needed + super().list_methods(kind, operations)

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if config["kind"] not in BELONGS.get(name, self.kinds):
            return ()
        options = super().list_options(name, config, declared)
        if config["kind"] == "recurrent" and name not in declared.config:
            options = () if name in MAY_HAVE["recurrent"] else STATEFUL.get(name, options)
        if config["kind"] == "recurrent" and name == "memory":
            window = config["window"] or MAX_POSITION
            return [size for size in options if size is None or size >= window]
        if name == "sections":
            pairs = config["key_dim"] // 2
            return [counts for counts in options if sum(counts or [pairs]) == pairs]
        if name == "memory" and name not in declared.config:
            return [add_limits(config["window"], excess) for excess in options]
        return options

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        config = super().draw_config(source, kind, declared)
        if source.below(LONG) == LONG - 1:
            sizes = source.pick(FAR)
            config |= {name: sizes[name] for name in sizes if name not in declared.config}
        if kind == "wrapper":
            config["caches"] = self.draw_caches(source, config, declared)
            config = drop_slots(config)
        return config

    def draw_operation(
        self, source: Source, model: UnifiedModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an operation.

        In a recurrent cache, sequences may share a state. If exactly one state is shared,
        half of the draws make a second shared state. If several states are shared, half
        of the draws are passes that end the sharing.
        """
        shared = model.list_shared_states()
        if shared and not source.below(2):
            name = "copy_prefix" if len(shared) < 2 else "forward"
            operations = [name] if name in operations else operations
        return super().draw_operation(source, model, operations)

    def propose_misuse(
        self, source: Source, model: UnifiedModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an invalid call.

        While a pass is open, three of four draws use `put` or `get`: without an open
        pass, every such call is refused, whatever its fields.
        """
        if model.batch is not None and len(operations) > 1 and source.below(4):
            names = [name for name in ("put", "get", "put") if name in operations]
            operations = names or operations
        return super().propose_misuse(source, model, operations)

    def draw_caches(
        self, source: Source, config: Config, declared: Kind
    ) -> Sequence[Mapping[str, Any]]:
        """Draws the caches of a wrapper, from the options that make the config legal."""
        options = declared.config.get("caches", PAIRS)
        fitting = [
            caches
            for caches in options
            if self.why_illegal(drop_slots({**config, "caches": caches})) is None
        ]
        return list(source.pick(fitting or list(options)))

    def get_clearing(self, model: UnifiedModel) -> Op | None:
        if model.unclear is None:
            return None
        return {"op": "remove", "sequence": model.unclear, "begin": 0, "end": None}

    def get_tag_dimension(self, config: Config) -> int:
        """Returns the dimension of V; tags are not read from K, which is rotated."""
        return int(config["value_dim"])

    def fit_config(self, config: Config, op: Op) -> Config:
        return {**config, "batch": max(config["batch"], len(op["positions"]))}

    def complete_move(self, move: Op, model: UnifiedModel) -> Op | None:
        """Sets the positions of a pass to the next positions of its sequences."""
        op = self.operations[move["op"]].complete(move)
        if op["op"] == "forward":
            rows = enumerate(op["sequences"])
            op["positions"] = [
                model.get_end(sequence) + op["sequences"][:row].count(sequence)
                for row, sequence in rows
            ]
        return op


BELONGS = {
    "window": ("swa", "swa-memory", "recurrent"),
    "memory": ("swa-memory", "recurrent"),
    "chunk": ("chunked",),
    "sections": (*CAUSAL, "wrapper"),
    "slots": ("recurrent", "wrapper"),
    "interval": ("recurrent", "wrapper"),
    "checkpoints": ("recurrent", "wrapper"),
    "caches": (),
}
"""Config field → the kinds that have this field; all kinds have the unlisted fields."""


def add_limits(window: int, excess: int | None) -> int:
    """Returns a memory that is `excess` larger than the window; 0 for no limit."""
    return 0 if excess is None or window == 0 else window + excess


def drop_slots(config: dict[str, Any]) -> dict[str, Any]:
    """Resets the fields of recurrent caches if no cache is recurrent."""
    if any(cache["kind"] == "recurrent" for cache in config["caches"]):
        return config
    return {**config, "slots": None, "interval": None, "checkpoints": 1}


UNIFIED = UnifiedContract()
