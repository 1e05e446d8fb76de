"""What a contract is made of, and what every contract shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.domain import Domain
from lockstep.harness.contracts.types import (
    Answer,
    Cell,
    Held,
    Op,
    Simplest,
    Source,
    Unreachable,
)
from lockstep.harness.core.fields import Schema


class Operation(ABC):
    """One operation of a contract, all that there is to know about it."""

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, Schema]]

    @abstractmethod
    def illegal(self, op: Op, model: Any) -> str | None:
        """Why `op` cannot be asked in the model's state, or None. Such an operation is
        skipped."""

    @abstractmethod
    def draw(self, source: Source, model: Any) -> Op | None:
        """An operation that is legal now, or None if there is none."""

    @abstractmethod
    def expect(self, op: Op, model: Any) -> Answer:
        """Carries `op` out on the model; what a backend must answer."""

    @abstractmethod
    def observe(self, op: Op, subject: Any, model: Any) -> Answer:
        """Carries `op` out on the backend; what it did answer.

        model: the reference after `op`, for reading only.
        """

    def accept(self, op: Op, model: Any, observed: Answer) -> None:  # noqa: B027
        """Lets the model follow an answer out of several that `expect` allows.

        An expectation that is `{"one_of": [answers]}`, or that has `{"one_of": [values]}`
        or `{"between": [low, high]}` as a value, leaves the choice to the backend; such
        an operation moves its model on here, not in `expect`.

        Args:
            op: the operation.
            model: the reference; before the operation, if there was a choice.
            observed: the backend's answer, which is allowed; where no backend runs, the
                first allowed one.
        """

    def verify(self, op: Op, subject: Any, model: Any) -> None:  # noqa: B027
        """After an answer that agrees: what else the backend returned is right. Raises
        Broken. model: the reference after `op`, its tag still that of `op`."""

    @abstractmethod
    def describe(self, op: Op) -> str:
        """`op` in words, as a line of a report."""

    def describe_row(self, op: Op, row: int) -> str:
        """One row of what `op` answers, in words."""
        return f"row {row}"

    @cache  # noqa: B019 - one object for each operation, for as long as the process
    def get_defaults(self) -> Op:
        """The operation with the fields that may be left out."""
        defaults = {
            name: schema["default"]
            for name, schema in self.fields.items()
            if "default" in schema
        }
        return {"op": self.name, **defaults}

    def tokens(self, op: Op) -> int:
        """How many tags `op` uses up, whether or not it runs."""
        return 0


class Contract(ABC):
    """A family of caches under one interface."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    config: ClassVar[Mapping[str, Schema]]
    operations: ClassVar[Mapping[str, Operation]]
    required: ClassVar[Sequence[str]]
    """The operations without which there is nothing to check."""
    weights: ClassVar[Mapping[str, int]]
    """How often an operation is drawn against the others, which have 1."""
    states: ClassVar[Sequence[str]]
    """All abstract states, by name."""
    opt_in: ClassVar[frozenset[str]]
    """The fields of a config that a backend must name, or they stay at their default."""
    errors: ClassVar[Sequence[str]] = ()
    """What a backend may refuse, beside mistakes of usage: it names an exception for
    each."""
    facts: ClassVar[Sequence[str]]
    """The names that `get_facts` gives numbers for."""

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Of `errors`, those that a backend with these kinds must name."""
        return self.errors

    @abstractmethod
    def why_not(self, config: Mapping[str, Any]) -> str | None:
        """The rule between its fields that a complete config breaks, or None."""

    @abstractmethod
    def list_operations(self, kind: str) -> Sequence[str]:
        """The operations that a kind has."""

    @abstractmethod
    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        """The methods a cache of `kind` must have if it declares `operations`."""

    def get_plain_config(
        self, kind: str, declared: Kind, dtypes: Sequence[str]
    ) -> dict[str, Any]:
        """The simplest config that the declared kind supports."""
        dtype = {"dtype": tuple(dtypes), **declared.config}
        return self.draw_config(Simplest(), kind, Kind(declared.operations, dtype))

    @abstractmethod
    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        """A complete config that the declared kind supports."""

    @abstractmethod
    def draw_reach(self, source: Source, model: Any) -> None:
        """Decides how far a program goes: most stay small, a few do not."""

    def draw_operation(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """One of `operations` that is legal now, likely where bugs are."""
        weighted = self.weigh(tuple(operations))
        for _ in range(4):
            operation = self.operations[source.pick(weighted)]
            op = operation.draw(source, model)
            if op is not None and operation.illegal(op, model) is None:
                return op
        return None

    @cache  # noqa: B019 - one object for each contract, for as long as the process
    def weigh(self, names: tuple[str, ...]) -> Sequence[str]:
        """Each name as often as its weight says."""
        return [name for name in names for _ in range(self.weights.get(name, 1))]

    def draw_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """An operation that breaks a rule of usage, if that can be asked now."""
        op = self.propose_misuse(source, model, operations)
        if op is None:
            return None
        operation = self.operations[op["op"]]
        complete = {**operation.get_defaults(), **op}
        return op if operation.illegal(complete, model) is None else None

    def propose_misuse(
        self, source: Source, model: Any, operations: Sequence[str]
    ) -> Op | None:
        """The same, whether or not it can be asked; None if the contract draws none."""
        return None

    @abstractmethod
    def open_model(self, config: Mapping[str, Any], rows: bool = True) -> Any:
        """The reference, empty, as the caches of one program; `tag` is the tag of the
        next token. rows=False leaves the rows of visible tokens out of its answers, and
        all tokens where that saves time: for those who only want to know where a program
        leads."""

    def open_cache(self, backend: Backend, config: Mapping[str, Any]) -> Any:
        """One empty cache of the backend."""
        return backend.open({**config, "poison": backend.poison})

    def count_tokens(self, ops: Sequence[Op]) -> int:
        """How many tags a program uses up."""
        return sum(self.operations[op["op"]].tokens(op) for op in ops)

    @abstractmethod
    def open_subject(
        self, backend: Backend, config: Mapping[str, Any], ops: Sequence[Op], every: bool
    ) -> Any:
        """The backend, empty, as the caches of one program with these operations.

        Its `settle(op)` checks, before `op` runs, that arrays returned earlier still hold
        what they must; `finish()` does so at the end; `margin` is the largest error so
        far of what has a tolerance, as a share of that. `tell_layout()` makes its answers
        name the columns, and those that each row sees. every: make the costly checks at
        every step, not at some.
        """

    @abstractmethod
    def get_states(self, op: Op, model: Any) -> Sequence[str]:
        """The abstract states that `op` is about to run in, by name."""

    @abstractmethod
    def get_facts(self, op: Op, model: Any) -> Mapping[str, int]:
        """Numbers of the model before `op`, by name, for the conditions of the ledger."""

    @abstractmethod
    def list_live(self, model: Any) -> Mapping[int, int]:
        """tag → position of all tokens that some cache holds now."""

    @abstractmethod
    def list_held(self, op: Op, model: Any) -> Sequence[Held]:
        """What the reference holds after `op`, cache by cache: in the order of the parts
        of an answer, or the cache first that `op` is about."""

    @abstractmethod
    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        """All abstract states that generation must reach for a kind as declared."""

    @abstractmethod
    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        """Which of these states some operations of a kind as declared never find."""

    def list_cells(self, kind: str, declared: Kind) -> list[Cell]:
        """All cells that generation must reach for a kind as declared."""
        names = [name for name in self.operations if name in declared.operations]
        rules = self.list_unreachable(kind, declared)
        return [
            (state, name)
            for state in self.list_states(kind, declared)
            for name in names
            if not any(rule.holds((state, name)) for rule in rules)
        ]

    @abstractmethod
    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        """The smallest dimension of a vector that has to tell all tags apart."""

    def count_layers(self, config: Mapping[str, Any]) -> int:
        """Layers that hold the K and V of a token."""
        return int(config["layers"])

    @abstractmethod
    def merge_operations(self, first: Op, second: Op) -> Op | None:
        """One operation in the place of two neighbours, or None. For shrinking."""

    def fit_config(self, config: Mapping[str, Any], op: Op) -> Mapping[str, Any]:
        """The config with as much more room as `op`, which was merged, may need."""
        return config

    @abstractmethod
    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Programs that a person would rather read, by steps that change several
        operations at once. For shrinking."""

    def simplify_config(
        self, config: Mapping[str, Any], ops: Sequence[Op]
    ) -> Iterator[tuple[Mapping[str, Any], Sequence[Op]]]:
        """The same by steps that change several fields of the config, or the config and
        the operations."""
        for simpler, changed in self.propose_configs(config, ops):
            if self.why_not(simpler) is None:
                yield simpler, changed

    def propose_configs(
        self, config: Mapping[str, Any], ops: Sequence[Op]
    ) -> Iterator[tuple[Mapping[str, Any], Sequence[Op]]]:
        """The same, whether or not a rule between fields is broken."""
        yield from ()

    @abstractmethod
    def rename(self, ops: Sequence[Op]) -> list[Op]:
        """The same operations, names in the order of appearance. For shrinking."""

    @abstractmethod
    def get_domain(self, kind: str, size: str) -> Domain:
        """The small world of a kind in which every program can be run; size: one of
        `harness.contracts.domain.SIZES`."""

    def complete_move(self, move: Op, model: Any) -> Op | None:
        """The operation that a move of a domain stands for in the model's state, every
        field set; None if it would break a rule of usage there."""
        return {**self.operations[move["op"]].get_defaults(), **move}
