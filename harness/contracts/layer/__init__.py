"""The layer contract: one sequence, one cache per layer; kinds kv, rotating and state.

`model`: the config, and the reference as the caches of a program. `operations`: one class
for each. `states`: what generation should reach. `domain`: small worlds. `subject`: a
backend's side. Here: how they make a contract, how programs are drawn, and what makes one
simpler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from harness.backend import Backend, Kind
from harness.contracts.base import Contract, Op, Operation, Schema, Source, Unreachable
from harness.contracts.domain import Domain
from harness.contracts.fields import MAX_LENGTH
from harness.contracts.layer import model, operations, states
from harness.contracts.layer.domain import DOMAINS
from harness.contracts.layer.model import LONG_REACH, LayerModel
from harness.contracts.layer.subject import LayerSubject

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
        self, backend: Backend, config: Mapping[str, Any], tags: int, every: bool
    ) -> LayerSubject:
        subject = LayerSubject(backend, config, tags, every)
        subject.get("a")
        return subject

    def get_states(self, op: Op, model: LayerModel) -> Sequence[str]:
        return states.get_layer_states(op, model)

    def get_facts(self, op: Op, model: LayerModel) -> Mapping[str, int]:
        return {"offset": model.get(op.get("cache", "a")).offset}

    def list_live(self, model: LayerModel) -> Mapping[int, int]:
        caches = model.caches.values()
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        return states.list_layer_states(kind, declared)

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        return states.UNREACHABLE

    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        dims = [config["key_dim"], config["value_dim"] or config["key_dim"]]
        return int(min(dims))

    def merge_operations(self, first: Op, second: Op) -> Op | None:
        """Two updates of one cache in a row are one update."""
        updates = first["op"] == second["op"] == "update"
        if not updates or first.get("cache") != second.get("cache"):
            return None
        length = first["length"] + second["length"]
        return {**first, "length": length} if length <= MAX_LENGTH else None

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """One token fewer in an update, and every offset after it one lower; no split or
        merge, and its input under the name that it gave to its output."""
        for place, op in enumerate(ops):
            for source, result in list_passed_on(op):
                after = [rename_in(later, {result: source}) for later in ops[place + 1 :]]
                yield [*ops[:place], *after]
            if op["op"] == "update" and op["length"] > 1:
                shorter = {**op, "length": op["length"] - 1}
                after = [lower_offsets(later) for later in ops[place + 1 :]]
                yield [*ops[:place], shorter, *after]
                yield [*ops[:place], shorter, *ops[place + 1 :]]
            if op["op"] == "update" and op["length"] == 1:
                yield [
                    *ops[:place],
                    *(lower_offsets(later) for later in ops[place + 1 :]),
                ]

    def get_domain(self, kind: str, size: str) -> Domain:
        return DOMAINS[size]

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        caches, snapshots = {"a": "a"}, dict[str, str]()
        for op in ops:
            for name in list_names(op, "cache"):
                caches.setdefault(name, chr(ord("a") + len(caches)))
            for name in list_names(op, "snapshot"):
                snapshots.setdefault(name, f"s{len(snapshots)}")
        return [rename_in(rename_in(op, snapshots), caches, "cache") for op in ops]


OFFSETS = ("from", "target", "at")


def lower_offsets(op: Op) -> Op:
    """Every offset that the operation names, one lower."""
    lower = {name: max(0, op[name] - 1) for name in OFFSETS if name in op}
    if "offsets" in op:
        lower["offsets"] = sorted({max(0, offset - 1) for offset in op["offsets"]})
    return {**op, **lower}


FIELDS = {
    "cache": ("cache", "into"),
    "snapshot": ("snapshot", "parent", "child", "into"),
}


def get_fields(op: Op, what: str) -> list[str]:
    """The fields of an operation that name a cache, or a snapshot."""
    other = "cache" if op["op"] == "clone" else "snapshot"
    return [
        field
        for field in FIELDS[what]
        if op.get(field) and (field != "into" or what == other)
    ]


def list_names(op: Op, what: str) -> list[str]:
    """The names of caches, or of snapshots, in an operation, in order."""
    values = [op[field] for field in get_fields(op, what)]
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [name for names in lists for name in names]


def rename_in(op: Op, names: Mapping[str, str], what: str = "snapshot") -> Op:
    """The operation with other names for snapshots, or caches."""
    renamed = dict(op)
    for field in get_fields(op, what):
        value = op[field]
        renamed[field] = (
            [names.get(name, name) for name in value]
            if isinstance(value, list)
            else names.get(value, value)
        )
    return renamed


def list_passed_on(op: Op) -> list[tuple[str, str]]:
    """(input, output) of an operation that hands a snapshot on under another name."""
    if op["op"] == "split":
        return [(op["snapshot"], op["parent"]), (op["snapshot"], op["child"])]
    if op["op"] == "merge":
        sources = [name for name in (op["parent"], op["child"]) if name]
        return [(source, op["into"]) for source in sources]
    return []


LAYER = LayerContract()
