"""The unified contract: many sequences in one pool, positions chosen by the caller.

`model`: the config, and the reference model of a program. `forward`, `operations`: one
class for each operation. `states`: the abstract states that generation should reach.
`system`, `reader`: a backend's side. `shrinking`: rules for shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract, Domain, Renaming, join
from lockstep.harness.contracts.operation import Config, Op, Source, rename
from lockstep.harness.contracts.unified.forward import list_places
from lockstep.harness.contracts.unified.model import (
    CAUSAL,
    CONFIG,
    MAY_HAVE,
    UnifiedModel,
    why_illegal_config,
)
from lockstep.harness.contracts.unified.operations import OPERATIONS
from lockstep.harness.contracts.unified.shrinking import (
    LETTERS,
    merge_passes,
    simplify,
    simplify_config,
)
from lockstep.harness.contracts.unified.states import (
    STATES,
    get_unified_states,
    list_unified_states,
    list_unreachable,
)
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.document import MAX_POSITION

# --- small worlds: two sequences, a window of two, passes of up to three rows -----------


SMALL_CONFIG: Mapping[str, Sequence[Any]] = {
    "window": [2],
    "memory": [3],
    "chunk": [2],
    "sequences": [2],
    "capacity": [4],
    "batch": [3],
    "caches": [[{"kind": "causal"}, {"kind": "swa", "window": 2}]],
    "interval": [2],
    "checkpoints": [2],
}
LARGER_CONFIG: Mapping[str, Sequence[Any]] = {
    **SMALL_CONFIG,
    "window": [3],
    "memory": [4],
    "chunk": [3],
    "sequences": [3],
    "batch": [4],
    "layers": [2],
    "heads": [2],
    "cache_padding": [2],
    "mask_padding": [4],
}


def forward(*sequences: int, **fields: Any) -> Op:
    """Makes a pass with a row for each of `sequences`, at their next free positions."""
    return {"op": "forward", "sequences": list(sequences), **fields}


def copy(source: int, target: int, length: int) -> Op:
    return {"op": "copy_prefix", "source": source, "target": target, "length": length}


def remove(sequence: int, begin: int, end: int | None) -> Op:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


def resume(sequence: int, position: int) -> Op:
    return {"op": "can_resume", "sequence": sequence, "position": position}


def for_both(*moves: Op) -> tuple[Op, ...]:
    """Lists each move of sequence 0, and the same of sequence 1."""
    pairs = ((move, rename(move, OPERATIONS, "sequence", {0: 1, 1: 0})) for move in moves)
    return join(*pairs)


TINY: Sequence[Op] = for_both(forward(0), forward(0, 0), copy(0, 1, 1), remove(0, 0, 1))
SMALL: Sequence[Op] = join(TINY, for_both(forward(0, 1), remove(0, 1, None)))
LONGER: Sequence[Op] = for_both(copy(0, 1, 2))
QUESTIONS: Sequence[Op] = for_both(resume(0, 2))
SAVED: Sequence[Op] = ({"op": "save", "into": "x"}, {"op": "load", "from": "x"})
IMAGES: Sequence[Op] = for_both(
    forward(0, multimodal=[0]), forward(0, 1, multimodal=[1]), forward(0, reserve=True)
)
STANDARD: Sequence[Op] = join(
    SMALL,
    LONGER,
    QUESTIONS,
    SAVED,
    for_both(
        forward(0, 0, 0),
        forward(0, 0, 1),
        forward(0, 0, **{"except": [0]}),
        forward(0, 0, reserve=True),
        remove(0, 0, None),
        remove(0, 1, 2),
        resume(0, 1),
    ),
    (copy(0, 2, 2), forward(2), forward(2, 0, 1), remove(2, 0, 1), {"op": "get"}),
    ({"op": "load", "from": "x", "fresh": True},),
    ({"op": "open", "window": 3, "memory": 4},),
)
"""`fit` leaves out the moves that a kind does not have: only causal caches can be saved,
only swa-memory is opened with two sizes."""

MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}


def exchange(first: int, second: int) -> Renaming:
    return lambda op: dict(
        rename(op, OPERATIONS, "sequence", {first: second, second: first})
    )


def get_domain(kind: str, size: str) -> Domain:
    config = LARGER_CONFIG if size == "standard" else SMALL_CONFIG
    moves = MOVES[size]
    if kind == "encoder":
        moves = join(moves, IMAGES)
    elif size == "small":
        moves = join(moves, QUESTIONS, SAVED if kind in CAUSAL else LONGER)
    pairs = [(0, 1), (0, 2), (1, 2)]
    return Domain(config, moves, [exchange(*pair) for pair in pairs])


# --- the contract -----------------------------------------------------------------------


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
"""Field → the values that are drawn for it. For "memory" they are its excess over the
window; None for no limit."""

STATEFUL: Mapping[str, Sequence[Any]] = {
    "sequences": (1, 2, 3, 4, 5, 6, 4, 9),
    "slots": (None, 1, 2, 3, None, None),
}
"""The same for recurrent caches, where one pass is to separate several shared states."""

LONG = 32
FAR: Sequence[Mapping[str, int]] = (
    {"sequences": 1, "capacity": 300, "batch": 24},
    {"sequences": 64, "capacity": 5, "batch": 8},
    {"sequences": 3, "capacity": 90, "batch": 32},
    {"sequences": 1, "capacity": 300, "batch": 24},
    {"sequences": 64, "capacity": 5, "batch": 8},
    {"sequences": 2, "capacity": 160, "batch": 130},
)
"""One program in 32 has one of these configs: past the sizes at which arrays of metadata
grow, with many sequences, or with prompts so long that their masks are made otherwise."""

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
"""Caches of a wrapper, in the combinations that models use."""


class UnifiedContract(Contract):
    name = "unified"
    kinds = (*CAUSAL, "encoder", "wrapper", "recurrent")
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset(
        {
            *("layers", "cache_padding", "mask_padding", "mask_dtype"),
            *("permuted_values", "small", "variant", "at_once", "scope"),
        }
    )
    operations = OPERATIONS
    required = ("forward",)
    states = STATES
    errors = ("cache-full", "not-supported", "shared")
    facts: ClassVar[Mapping[str, str]] = {
        "room": "free cells",
        "rows": "rows of a forward",
    }
    letters = LETTERS
    model = UnifiedModel
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_unified_states)
    list_states = staticmethod(list_unified_states)
    list_unreachable = staticmethod(list_unreachable)
    merge_operations = staticmethod(merge_passes)
    simplify = staticmethod(simplify)
    propose_configs = staticmethod(simplify_config)
    get_domain = staticmethod(get_domain)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        own = ["of"] if kind == "wrapper" else ["put", "get"]
        if kind == "recurrent":
            own += ["read_states", "write_states"]
        return own + super().list_methods(kind, operations)

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if config["kind"] not in BELONGS.get(name, self.kinds):
            return ()
        options = super().list_options(name, config, declared)
        if config["kind"] == "recurrent" and name not in declared.config:
            options = () if name in MAY_HAVE["recurrent"] else STATEFUL.get(name, options)
        if config["kind"] == "recurrent" and name == "memory":
            window = config["window"] or MAX_POSITION
            return [size for size in options if size is None or size >= window]
        if name == "memory" and name not in declared.config:
            return [add_limits(config["window"], more) for more in options]
        return options

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        config = super().draw_config(source, kind, declared)
        if source.below(LONG) == LONG - 1:
            far = source.pick(FAR)
            config |= {name: far[name] for name in far if name not in declared.config}
        if kind == "wrapper":
            config["caches"] = self.draw_caches(source, config, declared)
            config = drop_slots(config)
        return config

    def draw_operation(
        self, source: Source, model: UnifiedModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an operation. While sequences share a state, it is often one that makes
        others share another, or one that separates them in one pass."""
        shared = model.list_shared_states()
        if shared and not source.below(2):
            name = "copy_prefix" if len(shared) < 2 else "forward"
            operations = [name] if name in operations else operations
        return super().draw_operation(source, model, operations)

    def draw_caches(
        self, source: Source, config: Config, declared: Kind
    ) -> Sequence[Mapping[str, Any]]:
        """Draws caches that keep the rules between the fields."""
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

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> UnifiedSystem:
        declared = backend.contracts["unified"][config["kind"]]
        system = UnifiedSystem(backend, declared, config, self.count_tags(ops), every)
        system.places, system.writes = list_places(ops), self.writes
        return system

    def get_tag_dimension(self, config: Config) -> int:
        """Tags are read from values: keys depend on positions."""
        return int(config["value_dim"])

    def fit_config(self, config: Config, op: Op) -> Config:
        return {**config, "batch": max(config["batch"], len(op["positions"]))}

    def complete_move(self, move: Op, model: UnifiedModel) -> Op | None:
        """Moves the rows of a pass to the next positions of their sequences."""
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
    "slots": ("recurrent", "wrapper"),
    "interval": ("recurrent", "wrapper"),
    "checkpoints": ("recurrent", "wrapper"),
    "caches": (),
}
"""Field → the kinds that have it; all kinds have the other fields."""


def add_limits(window: int, more: int | None) -> int:
    """Returns a memory that is larger than the window; 0 for no limit."""
    return 0 if more is None or window == 0 else window + more


def drop_slots(config: dict[str, Any]) -> dict[str, Any]:
    """Resets the fields of recurrent caches if there is none."""
    if any(cache["kind"] == "recurrent" for cache in config["caches"]):
        return config
    return {**config, "slots": None, "interval": None, "checkpoints": 1}


UNIFIED = UnifiedContract()
