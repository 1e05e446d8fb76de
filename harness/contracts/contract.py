"""Defines `Contract`, and `Domain`: the small set of operations that `explore` runs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.operation import (
    Cell,
    Config,
    Effect,
    Op,
    Operation,
    Simplest,
    Source,
    number_names,
)
from lockstep.harness.contracts.rewrites import Changed, Rewrite
from lockstep.harness.contracts.states import StateTable, Unreachable
from lockstep.harness.contracts.system import Setup
from lockstep.harness.core.document import Schema
from lockstep.harness.core.payload import LEAST_SPECIAL, count_ordinary, get_tag_limit

FOLLOW = 3
"""With probability 1/FOLLOW, the generator draws a follow-up; see `Contract.next`."""

LONG = 32
"""Every 32nd program, on average, is long; see `Contract.long_reach`."""

REAL = 32
"""One in REAL programs has sizes of real models, where the backend declares none."""

SPECIAL = 2
"""SPECIAL in REAL programs have special numbers, and no sizes of real models."""

DIMENSIONS = ("heads", "key_dim", "value_dim")
REAL_SIZES = ((2, 64, 64), (32, 64, 64), (64, 64, 64), (4, 128, 128), (2, 256, 256))

WITHOUT_EFFECT = (
    *("dtype", "heads", "key_dim", "value_dim", "conv_width", "step"),
    *("small", "variant", "at_once", "scope", "special_numbers"),
)
"""The config fields that do not change any answer."""


class Contract(ABC):
    """A family of caches under one interface.

    Attributes:
        name: the contract's name.
        kinds: the kinds of caches in this family.
        config: the JSON Schema of each config field.
        choices: config field → the values that the generator draws, the simplest first.
        opt_in: the config fields that keep their default unless a backend declares them.
        operations: all operations, by name.
        required: the operations that every backend must have.
        table: all abstract states.
        rare: the abstract states that programs aim at three times as often.
        errors: the names of the refusals other than "usage"; a backend declares an
            exception for each name.
        tells: the optional methods with which a cache reports its contents; see
            `Kind.tells`.
        facts: name → meaning of the numbers that the model's `get_facts` returns.
        next: operation → the operations that use or test its result; random choice
            rarely draws such a pair in sequence.
        letters: sort of names, such as "cache" → a function from an index to a name, for
            renaming; see `core.document.NAMES`.
        model: opens the reference; see `open_model`.
        system: opens a backend; see `open_system`.
        rewrites: propose simpler programs, in the order in which shrinking tries them.
        depth: the number of programs needed to find a mistake, relative to most
            contracts; larger where mistakes need a longer history (`ci/bench/find.py`).
        has_arrays: whether the caches get and return arrays; the engines of the serving
            contract get and return ids of tokens.
        tells_memory: whether a cache reports its own memory; see `Kind.held`.
        interfaces: kind → the interface of its cache, for kinds used without a wrapper.
        heeded: kind → the config fields that a cache of this kind must respect.
        counted: config fields that vectors declare, so that the abstract states that
            depend on these fields count.
        settings: config field → its values, the default first. In sets of vectors,
            programs of the last level use the other values; programs of other levels use
            the default.
        long_reach: the largest offsets of the few long programs; 0 if there are none.
        without_attention: the kinds whose passes have no attention.
        leaves_choices: whether operations regularly have several right answers, and
            later answers depend on the backend's choice.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    config: ClassVar[Mapping[str, Schema]]
    choices: ClassVar[Mapping[str, Sequence[Any]]] = {}
    opt_in: ClassVar[frozenset[str]]
    operations: ClassVar[Mapping[str, Operation]]
    required: ClassVar[Sequence[str]]
    table: ClassVar[StateTable]
    rare: ClassVar[Sequence[str]] = ()
    errors: ClassVar[Sequence[str]] = ()
    tells: ClassVar[Sequence[str]] = ()
    facts: ClassVar[Mapping[str, str]] = {}
    next: ClassVar[Mapping[str, Sequence[str]]] = {}
    letters: ClassVar[Mapping[str, Callable[[int], str]]] = {}
    model: Callable[[Config, bool], Any]
    system: Callable[[Setup], Any]
    rewrites: ClassVar[Sequence[Rewrite]]
    has_arrays: ClassVar[bool] = True
    tells_memory: ClassVar[bool] = True
    interfaces: ClassVar[Mapping[str, type]] = {}
    heeded: ClassVar[Mapping[str, Sequence[str]]] = {}
    counted: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    settings: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    without_attention: ClassVar[Sequence[str]] = ()
    leaves_choices: ClassVar[bool] = False
    depth: ClassVar[int] = 1
    long_reach: ClassVar[int] = 0

    # --- what there is ------------------------------------------------------------------

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Lists the `errors` that a backend with these kinds must declare."""
        return self.errors

    @abstractmethod
    def why_illegal(self, config: Config) -> str | None:
        """Returns the broken rule if the fields of a complete config do not fit together,
        else None."""

    def list_operations(self, kind: str) -> Sequence[str]:
        """Lists the operations of a kind."""
        return [
            name
            for name, operation in self.operations.items()
            if operation.kinds is None or kind in operation.kinds
        ]

    def list_implemented(self, kind: str, cache: type) -> frozenset[str]:
        """Lists the operations of a kind that a cache class implements.

        A class implements an operation if it defines the operation's method, or if the
        operation needs no method.
        """
        methods = {
            name: self.operations[name].get_method()
            for name in self.list_operations(kind)
        }
        return frozenset(name for name in methods if methods[name] in (None, *dir(cache)))

    def list_essential(self) -> list[str]:
        """Lists the required operations that add or move tokens; a program without them
        compares nothing."""
        brings = Effect.ADDS | Effect.MOVES
        return [name for name in self.required if self.operations[name].effect & brings]

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        """Lists the methods that a cache of `kind` needs to declare `operations`."""
        methods = (self.operations[name].get_method() for name in operations)
        return [method for method in dict.fromkeys(methods) if method]

    def list_told(self, config: Config, tells: Iterable[str]) -> list[str]:
        """Lists the methods that a cache of `config` needs for the declared `tells`."""
        return sorted(tells)

    def count_tags(self, ops: Sequence[Op]) -> int:
        """Counts the tags that a program uses up."""
        return sum(self.operations[op["op"]].count_tags(op) for op in ops)

    @abstractmethod
    def get_tag_dimension(self, config: Config) -> int:
        """Returns the dimension of the smallest vectors that must distinguish tags."""

    def get_tag_limit(self, config: Config) -> int:
        """Returns the number of tags that the smallest vectors can distinguish."""
        dim = self.get_tag_dimension(config)
        return get_tag_limit(count_ordinary(dim, config.get("special_numbers", False)))

    def count_layers(self, config: Config) -> int:
        """Counts the layers that store K and V of a token."""
        return int(config["layers"])

    def count_numbers(self, config: Config) -> int:
        """Counts the numbers in one token's K and V, summed over all layers."""
        dims = int(config["key_dim"] + config["value_dim"])
        return self.count_layers(config) * int(config["heads"]) * dims

    # --- drawing ------------------------------------------------------------------------

    def get_plain_config(
        self, kind: str, declared: Kind, dtypes: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the simplest config that the declared kind supports."""
        dtype = {"dtype": tuple(dtypes), **declared.config}
        return self.draw_config(Simplest(), kind, Kind(declared.operations, dtype))

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        """Draws a complete config that the declared kind supports.

        A field without options takes its default; see `list_options`.
        """
        config = {name: schema.get("default") for name, schema in self.config.items()}
        config["kind"] = kind
        for name in self.config:
            options = self.list_options(name, config, declared)
            if options:
                config[name] = source.pick(list(options))
        share = source.below(REAL) if "key_dim" in config else 0
        if share == REAL - 1:
            sizes = zip(DIMENSIONS, source.pick(REAL_SIZES), strict=True)
            real = {name: size for name, size in sizes if name not in declared.config}
            if self.why_illegal({**config, **real}) is None:
                config |= real
        elif share >= REAL - 1 - SPECIAL and "special_numbers" not in declared.config:
            config["special_numbers"] = self.can_be_special(config)
        return config

    def can_be_special(self, config: Config) -> bool:
        """Tells whether K or V of a config can have special numbers."""
        dim: int = config["value_dim"] or config["key_dim"]
        return dim >= LEAST_SPECIAL

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        """Lists the values that may be drawn for a field.

        Args:
            name: the field.
            config: the partial config; all fields before `name` are drawn.
            declared: the kind as the backend declares it.
        """
        chosen = () if name in self.opt_in else self.choices.get(name, ())
        return declared.config.get(name, chosen)

    def draw_reach(self, source: Source, model: Any) -> None:
        """Draws the largest offset of a program; most programs stay small, a few grow
        large."""
        if self.long_reach and source.one_in(LONG):
            model.reach = self.long_reach

    def is_bound(self, model: Any) -> bool:
        """Tells whether a program heads for states that need many operations; such a
        program aims at no cell."""
        return False

    def choose_cells(self, model: Any, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Lists the cells that a program aims at; a cell of a rare state occurs 3 times.

        Args:
            model: the reference, after `draw_reach`.
            cells: all cells that the backend's programs should reach.
        """
        return [*cells, *[cell for cell in cells if cell[0] in self.rare] * 2]

    def draw_operation(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws a legal operation out of `operations`; prefers follow-ups in `next`."""
        if not self.next:
            return self.draw_legal(source, model, operations)
        following = [name for name in self.next.get(model.last, ()) if name in operations]
        if following and not source.below(FOLLOW):
            operations = following
        op = self.draw_legal(source, model, operations)
        model.last = op["op"] if op else ""
        return op

    def draw_legal(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        weighted = self.weigh(tuple(operations))
        choice = source.below(len(weighted))
        for attempt in range(4):  # all attempts share one choice: most names are illegal
            index = choice + attempt * (5 * len(weighted) // 8)
            operation = self.operations[weighted[index % len(weighted)]]
            op = operation.draw(source, model)
            if op is not None:
                op = operation.complete(op)
                if operation.why_illegal(op, model) is None:
                    return op
        return None

    @cache  # noqa: B019 - a contract is a singleton and lives as long as the process
    def weigh(self, names: tuple[str, ...]) -> Sequence[str]:
        """Returns a list in which each name occurs as often as its weight."""
        return [name for name in names for _ in range(self.operations[name].weight)]

    def draw_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws a legal call that the backend must refuse, or None."""
        op = self.propose_misuse(source, model, operations)
        if op is None:
            return None
        operation = self.operations[op["op"]]
        op = operation.complete(op)
        return op if operation.why_illegal(op, model) is None else None

    def propose_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws an invalid call of one of `operations`. The call may be illegal in the
        current state; the step is then skipped."""
        misusable = [name for name in operations if self.operations[name].has_misuse]
        name = source.pick(misusable) if misusable else None
        return self.operations[name].draw_misuse(source, model) if name else None

    def get_clearing(self, model: Any) -> Op | None:
        """Returns the operation that must clear undefined content, or None.

        Content is undefined after a refusal by a cache that is not `Kind.atomic`.

        Args:
            model: the reference after the last operation.
        """
        return None

    # --- both sides ---------------------------------------------------------------------

    def open_model(self, config: Config, rows: bool = True) -> Any:
        """Opens the reference, empty, for one program.

        Other modules use these attributes and methods of the reference:

        * `tag`: the tag of the next token.
        * `list_live()`: tag → position of all tokens that any cache holds now.
        * `list_held(op)`: the tokens of each cache after `op`; either in the order in
          which the answer lists the caches, or with the cache of `op` first.
        * `get_facts(op)`: numbers before `op`, for the conditions of the ledger.

        Args:
            config: a complete config.
            rows: whether answers list the tokens that each row sees. If False, answers
                may omit tokens to save time, for callers that need the states that a
                program reaches, and no answers.
        """
        return self.model(config, rows)

    def open_cache(self, backend: Backend, config: Config) -> Any:
        """Opens one empty cache of the backend."""
        return backend.open({**config, "poison": backend.poison})

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> Any:
        """Opens the backend, empty, as the caches of one program.

        See `contracts.system.System` for the methods that the executor calls.

        Args:
            backend: the backend.
            config: a complete config.
            ops: the operations of the program.
            every: whether to run the expensive checks too, at every step.
        """
        declared = backend.contracts[self.name][config["kind"]]
        tags = self.count_tags(ops)
        return self.system(
            Setup(backend, declared, config, ops, tags, every, self.writes)
        )

    @property
    def writes(self) -> frozenset[str]:
        """The operations that may invalidate earlier views of the cache."""
        return frozenset(
            name for name, operation in self.operations.items() if operation.writes
        )

    # --- states and cells ---------------------------------------------------------------

    @abstractmethod
    def get_states(self, op: Op, model: Any) -> Sequence[str]:
        """Returns the names of the abstract states before `op` runs."""

    @property
    def states(self) -> Sequence[str]:
        """The names of all abstract states."""
        return self.table.names

    @abstractmethod
    def list_features(self, kind: str, declared: Kind) -> set[str]:
        """Lists the contract-specific features of a kind as declared.

        `list_all_features` adds the features that every contract has; see
        `contracts.states.Features`.
        """

    def list_all_features(self, kind: str, declared: Kind) -> set[str]:
        features = {kind, *declared.operations, *self.list_features(kind, declared)}
        features |= {"refuses"} if declared.refuses else set()
        return features | ({"atomic"} if declared.atomic else set())

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        """Lists the abstract states that generation must reach for a kind."""
        return self.table.list_reachable(self.list_all_features(kind, declared))

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        """Lists the rules that exclude cells of a kind, with their reasons."""
        return self.table.list_rules(self.list_all_features(kind, declared))

    def list_cells(self, kind: str, declared: Kind) -> list[Cell]:
        """Lists all cells that generation must reach for a kind as declared."""
        names = [name for name in self.operations if name in declared.operations]
        rules = self.list_unreachable(kind, declared)
        return [
            (state, name)
            for state in self.list_states(kind, declared)
            for name in names
            if not any(rule.holds((state, name)) for rule in rules)
        ]

    # --- shrinking ----------------------------------------------------------------------

    @abstractmethod
    def merge_operations(self, first: Op, second: Op) -> Op | None:
        """Merges two adjacent operations into one; returns None if that is impossible."""

    def fit_config(self, config: Config, op: Op) -> Config:
        """Returns the config, with more capacity if a merged `op` needs it."""
        return config

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Yields simpler programs; each step changes one or several operations."""
        for rewrite in self.rewrites:
            yield from rewrite(ops)

    def simplify_config(self, config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
        """Yields simpler legal configs with adapted operations."""
        for simpler, changed in self.propose_configs(config, ops):
            if self.why_illegal(simpler) is None:
                yield simpler, changed

    def propose_configs(self, config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
        """Yields simpler configs with their operations; some configs may be illegal."""
        yield from ()

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        """Renames all names in the operations, in the order of first appearance."""
        return number_names(ops, self.operations, self.letters)

    # --- exploring ----------------------------------------------------------------------

    @abstractmethod
    def get_domain(self, kind: str, size: str) -> Domain:
        """Returns the small domain of a kind, in which `explore` can run every program.

        Args:
            kind: one of `kinds`.
            size: one of `SIZES`.
        """

    def get_world(self, kind: str, size: str) -> Domain:
        """Returns the domain, extended by the `moves` that the operations declare."""
        domain = self.get_domain(kind, size)
        moves = [
            {"op": name, **fields}
            for name in self.list_operations(kind)
            for fields in self.operations[name].moves
        ]
        return replace(domain, moves=(*domain.moves, *moves))

    def complete_move(self, move: Op, model: Any) -> Op | None:
        """Completes a move of a domain to an operation for the model's current state.

        Returns None if the operation would be an invalid call in this state.
        """
        return self.operations[move["op"]].complete(move)


# --- small worlds -----------------------------------------------------------------------


SIZES = ("tiny", "small")
"""The sizes of a domain, from the fewest operations to the most."""

Renaming = Callable[[Op], Op]
"""A function that swaps two names in an operation."""


@dataclass(frozen=True)
class Domain:
    """The small set of configs and operations in which `explore` runs every program.

    Attributes:
        config: config field → its values in order of preference. Other fields keep the
            values of the plainest config.
        moves: operations. `Contract.complete_move` adds the fields whose values depend on
            earlier operations.
        renamings: functions that swap two interchangeable names.
    """

    config: Mapping[str, Sequence[Any]]
    moves: Sequence[Op]
    renamings: Sequence[Renaming] = ()


def read_moves(text: str) -> tuple[Op, ...]:
    """Parses operations from text such as "trim count=1; clone into=b".

    Fields follow the operation's name; a value is JSON or a word without quotes.
    """
    return tuple(map(read_move, text.split(";")))


def read_move(text: str) -> Op:
    name, *fields = text.split()
    pairs = (field.split("=", 1) for field in fields)
    return {"op": name, **{field: read_value(value) for field, value in pairs}}


def read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
