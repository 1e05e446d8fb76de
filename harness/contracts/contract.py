"""A contract, and the small worlds of programs that it proposes."""

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

FOLLOW = 3
"""One operation in so many is drawn from those that follow; see `Contract.next`."""

WITHOUT_EFFECT = (
    *("dtype", "heads", "key_dim", "value_dim", "conv_width", "step"),
    *("small", "variant", "at_once", "scope"),
)
"""Fields of a config on which no answer depends."""


class Contract(ABC):
    """A family of caches under one interface.

    Attributes:
        name, kinds: of the contract, and of what it holds.
        config: the JSON Schema of each field of a config.
        choices: what is drawn for a field of the config, the simplest first.
        opt_in: the fields of a config that stay at their default unless a backend
            declares them.
        operations: all operations, by name.
        required: the operations without which there is nothing to check.
        weights: how often an operation is drawn, where its own weight does not say so.
        table: all abstract states.
        rare: those that programs are to try to reach three times as often.
        errors: what a backend may refuse, beside misuse: it names an exception for each.
        tells: what a cache may tell beside its answers; see `Kind.tells`.
        facts: the numbers that `get_facts` of the model gives: name → meaning.
        next: after an operation, those that use what it made, or put it to the test:
            chance alone seldom draws one after the other.
        letters: for each sort of names (`core.document.NAMES`) that mean nothing, what
            the first is called, the second, and so on.
        model: opens the reference; see `open_model`.
        system: opens a backend; see `open_system`.
        rewrites: propose simpler operations, in the order in which they are tried.
        depth: how many times as many programs it takes until a mistake is found as with
            most contracts, since a longer history leads there (`ci/bench/find.py`).
        free_fields: the fields of a config on which no answer depends.
        tells_memory: a cache itself tells what it holds; see `Kind.held`.
        interfaces: for kinds that stand alone, what a cache of the kind looks like.
        heeded: the fields of its config that such a cache has to heed.
        counted: fields that vectors declare, so that abstract states around them count.
        settings: fields that have their default, which comes first, in all levels of
            vectors but the last one.
        leaves_choices: several answers to an operation are right as a matter of course,
            and what follows depends on the one that was given.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    config: ClassVar[Mapping[str, Schema]]
    choices: ClassVar[Mapping[str, Sequence[Any]]] = {}
    opt_in: ClassVar[frozenset[str]]
    operations: ClassVar[Mapping[str, Operation]]
    required: ClassVar[Sequence[str]]
    weights: ClassVar[Mapping[str, int]] = {}
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
    free_fields: ClassVar[Sequence[str]] = WITHOUT_EFFECT
    tells_memory: ClassVar[bool] = True
    interfaces: ClassVar[Mapping[str, type]] = {}
    heeded: ClassVar[Mapping[str, Sequence[str]]] = {}
    counted: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    settings: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    leaves_choices: ClassVar[bool] = False
    depth: ClassVar[int] = 1

    # --- what there is ------------------------------------------------------------------

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Lists those of `errors` that a backend with these kinds must name."""
        return self.errors

    @abstractmethod
    def why_illegal(self, config: Config) -> str | None:
        """Names the rule between its fields that a complete config breaks, or None."""

    def list_operations(self, kind: str) -> Sequence[str]:
        """Lists the operations that a kind has."""
        return [
            name
            for name, operation in self.operations.items()
            if operation.kinds is None or kind in operation.kinds
        ]

    def list_implemented(self, kind: str, cache: type) -> frozenset[str]:
        """Lists the operations that a kind has and whose methods a class of caches
        defines: what a backend declares that implements all it can."""
        methods = {
            name: self.operations[name].get_method()
            for name in self.list_operations(kind)
        }
        return frozenset(name for name in methods if methods[name] in (None, *dir(cache)))

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        """Lists the methods that a cache of `kind` needs to declare `operations`."""
        methods = (self.operations[name].get_method() for name in operations)
        return [method for method in dict.fromkeys(methods) if method]

    def list_told(self, config: Config, tells: Iterable[str]) -> list[str]:
        """Lists the methods that a cache of `config` needs to tell what it declares."""
        return sorted(tells)

    def count_tags(self, ops: Sequence[Op]) -> int:
        """Counts the tags that a program uses up."""
        return sum(self.operations[op["op"]].count_tags(op) for op in ops)

    @abstractmethod
    def get_tag_dimension(self, config: Config) -> int:
        """Returns the smallest dimension of a vector that has to tell all tags apart."""

    def count_layers(self, config: Config) -> int:
        """Counts the layers that hold the K and V of a token."""
        return int(config["layers"])

    def count_numbers(self, config: Config) -> int:
        """Counts the numbers in K and V of a token, in all layers."""
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
        return config

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        """Lists the values that may be drawn for a field.

        Args:
            name: the field.
            config: the config, drawn as far as the fields before this one.
            declared: the kind as the backend declares it.
        """
        chosen = () if name in self.opt_in else self.choices.get(name, ())
        return declared.config.get(name, chosen)

    def draw_reach(self, source: Source, model: Any) -> None:  # noqa: B027
        """Decides how far a program goes: most stay small, a few do not."""

    def choose_cells(self, model: Any, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Lists those of some cells that a program is to try to reach; of rare states
        three times.

        Args:
            model: after `draw_reach`.
            cells: all that the backend's programs are to reach.
        """
        return [*cells, *[cell for cell in cells if cell[0] in self.rare] * 2]

    def draw_operation(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws one of `operations` that is legal now, likely where bugs are."""
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
        for attempt in range(4):  # one choice for all, as most cannot be asked now
            index = choice + attempt * (5 * len(weighted) // 8)
            operation = self.operations[weighted[index % len(weighted)]]
            op = operation.draw(source, model)
            if op is not None:
                op = operation.complete(op)
                if operation.why_illegal(op, model) is None:
                    return op
        return None

    @cache  # noqa: B019 - one object for each contract, for as long as the process
    def weigh(self, names: tuple[str, ...]) -> Sequence[str]:
        """Repeats each name as often as its weight says."""
        weights = [self.weights.get(name, self.operations[name].weight) for name in names]
        pairs = zip(names, weights, strict=True)
        return [name for name, weight in pairs for _ in range(weight)]

    def draw_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws an operation that breaks a rule of usage, if that can be asked now."""
        op = self.propose_misuse(source, model, operations)
        if op is None:
            return None
        operation = self.operations[op["op"]]
        op = operation.complete(op)
        return op if operation.why_illegal(op, model) is None else None

    def propose_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """Draws a misuse of one of `operations`, whether or not it can be asked."""
        misusable = [name for name in operations if self.operations[name].has_misuse]
        name = source.pick(misusable) if misusable else None
        return self.operations[name].draw_misuse(source, model) if name else None

    def get_clearing(self, model: Any) -> Op | None:
        """Returns the operation that must come next if the last one was refused, and a
        refusal leaves some of the cache undefined (`Kind.atomic`); else None.

        Args:
            model: the reference after the last operation.
        """
        return None

    # --- both sides ---------------------------------------------------------------------

    def open_model(self, config: Config, rows: bool = True) -> Any:
        """Opens the reference, empty, for one program.

        Its attributes and methods that others use:

        * `tag`: the tag of the next token.
        * `list_live()`: tag → position of all tokens that some cache holds now.
        * `list_held(op)`: what it holds after `op`, cache by cache; in the order of the
          parts of an answer, or the cache that `op` is about first.
        * `get_facts(op)`: numbers before `op`, for the conditions of the ledger.

        Args:
            config: a complete config.
            rows: answers say what each row sees. Without, answers may leave out all
                tokens where that saves time: for those who only need to know where a
                program leads.
        """
        return self.model(config, rows)

    def open_cache(self, backend: Backend, config: Config) -> Any:
        """Opens one empty cache of the backend."""
        return backend.open({**config, "poison": backend.poison})

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> Any:
        """Opens the backend, empty, as the caches of one program.

        See `contracts.system.System` for what the executor asks of it.

        Args:
            backend: the backend.
            config: a complete config.
            ops: the operations of the program.
            every: make the costly checks too, at every step.
        """
        declared = backend.contracts[self.name][config["kind"]]
        tags = self.count_tags(ops)
        return self.system(
            Setup(backend, declared, config, ops, tags, every, self.writes)
        )

    @property
    def writes(self) -> frozenset[str]:
        """The operations after which a view of the cache need not hold."""
        return frozenset(
            name for name, operation in self.operations.items() if operation.writes
        )

    # --- states and cells ---------------------------------------------------------------

    @abstractmethod
    def get_states(self, op: Op, model: Any) -> Sequence[str]:
        """Names the abstract states that `op` is about to run in."""

    @property
    def states(self) -> Sequence[str]:
        """The names of all abstract states."""
        return self.table.names

    @abstractmethod
    def list_features(self, kind: str, declared: Kind) -> set[str]:
        """Lists the features of a kind as declared, beside those of every contract; see
        `contracts.states.Features`."""

    def list_all_features(self, kind: str, declared: Kind) -> set[str]:
        features = {kind, *declared.operations, *self.list_features(kind, declared)}
        features |= {"refuses"} if declared.refuses else set()
        return features | ({"atomic"} if declared.atomic else set())

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        """Lists the abstract states that generation must reach for a kind."""
        return self.table.list_reachable(self.list_all_features(kind, declared))

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        """Lists which of these states some operations never find, and why."""
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
        """Returns one operation in the place of two neighbours, or None."""

    def fit_config(self, config: Config, op: Op) -> Config:
        """Returns the config with as much more room as a merged `op` may need."""
        return config

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Proposes simpler programs by steps that change several operations at once."""
        for rewrite in self.rewrites:
            yield from rewrite(ops)

    def simplify_config(self, config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
        """Proposes the same by steps that change the config, or the config and `ops`."""
        for simpler, changed in self.propose_configs(config, ops):
            if self.why_illegal(simpler) is None:
                yield simpler, changed

    def propose_configs(self, config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
        """Proposes the same, whether or not a rule between fields is broken."""
        yield from ()

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        """Returns the same operations with names in the order of their appearance."""
        return number_names(ops, self.operations, self.letters)

    # --- exploring ----------------------------------------------------------------------

    @abstractmethod
    def get_domain(self, kind: str, size: str) -> Domain:
        """Returns the small world of a kind in which every program can be run.

        Args:
            kind: one of `kinds`.
            size: one of `SIZES`.
        """

    def get_world(self, kind: str, size: str) -> Domain:
        """Returns the domain with the moves that operations bring along."""
        domain = self.get_domain(kind, size)
        moves = [
            {"op": name, **fields}
            for name in self.list_operations(kind)
            for fields in self.operations[name].moves
        ]
        return replace(domain, moves=(*domain.moves, *moves))

    def complete_move(self, move: Op, model: Any) -> Op | None:
        """Returns the operation that a move of a domain stands for in the model's state.

        None if it would break a rule of usage there.
        """
        return self.operations[move["op"]].complete(move)


# --- small worlds -----------------------------------------------------------------------


SIZES = ("tiny", "small", "standard")
"""From fewest operations to most."""

Renaming = Callable[[Op], Op]
"""Exchanges two names in an operation."""


@dataclass(frozen=True)
class Domain:
    """The small world that a contract proposes for one kind.

    config: for some fields, the values in the order in which they are preferred. moves:
    operations; fields that follow from what was done before are missing, and the contract
    fills them in. renamings: exchanges of names that mean the same.
    """

    config: Mapping[str, Sequence[Any]]
    moves: Sequence[Op]
    renamings: Sequence[Renaming] = ()


def read_moves(text: str) -> tuple[Op, ...]:
    """Reads operations from text: "trim count=1; clone into=b".

    Behind the name of each stand its fields; their values are JSON, or bare words.
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
