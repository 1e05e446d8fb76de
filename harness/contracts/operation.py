"""Operations: their types, what each must say, names in them, the loop over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from lockstep.harness.core.document import NAMES, Schema
from lockstep.reference.errors import CacheFull, NotSupported, Shared
from lockstep.reference.slots import NoSlot

Op = Mapping[str, Any]
"""One operation of a program: {"op": name, field: value, …}, every field set."""

Config = Mapping[str, Any]
"""The config of a program: {"kind": name, field: value, …}, every field set."""

Answer = dict[str, Any]
"""The answer to an operation, in the form of a trace: {"offset": 3, "visible": […]}."""

Types = Mapping[str, Any]
"""Field of a message of drivers → its type."""

Cell = tuple[str, str]
"""(abstract state, operation that finds it). What is counted of a run."""

T = TypeVar("T")
Own = TypeVar("Own", bound="Operation")


class HeldToken(NamedTuple):
    """A token that the reference has, and where.

    sequences: whose it is; none where there is one only. is_old: a backend need not have
    it any more.
    """

    tag: int
    position: int
    sequences: tuple[int, ...] = ()
    is_old: bool = False


Held = tuple[str, Sequence[HeldToken]]
"""A cache, or a part of one, in words, and what the reference holds in it."""


ERRORS: Mapping[type[Exception], str] = {
    ValueError: "usage",
    CacheFull: "cache-full",
    NotSupported: "not-supported",
    Shared: "shared",
    NoSlot: "no-slot",
}
"""The refusals of the reference."""


def ask(call: Callable[[], Any]) -> Answer:
    """Returns {"error": name} if the reference refuses, else {"result": value} or {}; all
    answers that are right if it has several reasons to refuse."""
    try:
        result = call()
    except ExceptionGroup as group:
        names = dict.fromkeys(map(name_error, group.exceptions))
        return choose([{"error": name} for name in names])
    except tuple(ERRORS) as error:
        return {"error": name_error(error)}
    return {} if result is None else {"result": result}


def name_error(error: Exception) -> str:
    return next(ERRORS[kind] for kind in ERRORS if isinstance(error, kind))


def choose(answers: Sequence[Answer]) -> Answer:
    """Returns the answer, or all that are right; see `Operation.resolve`."""
    return answers[0] if len(answers) == 1 else {"one_of": list(answers)}


def list_allowed(answer: Answer) -> list[Answer]:
    """Lists the answers that an expectation allows as a whole."""
    return list(answer.get("one_of", [answer]))


def agrees(expected: Any, observed: Any) -> bool:
    """Says whether an observed answer is this one. It may have more fields, and lists
    for tuples; tokens are in the same order."""
    if isinstance(expected, Mapping):
        if not isinstance(observed, Mapping):
            return False
        same = ("error" in expected) == ("error" in observed)
        return same and all(
            agrees(expected[name], observed.get(name)) for name in expected
        )
    if isinstance(expected, list | tuple):
        if not isinstance(observed, list | tuple) or len(expected) != len(observed):
            return False
        return all(map(agrees, expected, observed))
    return bool(expected == observed)


class Source(ABC):
    """The source of all choices of a generator."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """An integer in [0, limit), limit ≥ 1; 0 is the simplest."""

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def one_in(self, number: int) -> bool:
        """Draws what happens one time in `number`; the simplest is that it does not."""
        return self.below(number) == number - 1

    def renew(self) -> None:  # noqa: B027
        """Is called between operations: the choices of each stand for themselves."""


class Simplest(Source):
    """Always the simplest choice."""

    def below(self, limit: int) -> int:
        return 0


# --- an operation -----------------------------------------------------------------------


class Effect(Flag):
    """What an operation does to the tokens that caches hold.

    ADDS: tokens come in that were not there. REMOVES: tokens go. MOVES: tokens get, or
    are copied to, another row, sequence, name or position, and what was there is
    replaced. READS: it answers, and every token stays. CONTROL: it does neither; it
    announces, limits or must be refused.
    """

    ADDS = auto()
    REMOVES = auto()
    MOVES = auto()
    READS = auto()
    CONTROL = auto()


class Operation(ABC):
    """One operation of a contract: everything there is to know about it.

    Attributes:
        name: its name in programs.
        fields: the JSON Schema of each field.
        answer: the JSON Schema of its answer; see `get_answer`. It has no default.
        effect: what it does to tokens. It has no default, so that nobody forgets it.
        weight: how often it is drawn, compared with others.
        kinds: the kinds that have it; None for all.
        writes: views of the cache that were handed out need not hold after it.
        is_method: a cache needs a method of this name.
        moves: fields of its moves in small worlds, beside those of `Contract.get_domain`.
        messages: messages of drivers that cannot be derived from `fields` and `answer`,
            such as those that carry arrays; see `backends.driver.messages`.
        has_misuse: `draw_misuse` draws something.
        text: its description, with the names of fields in braces; empty for a list of
            all fields.
    """

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, Schema]] = {}
    answer: ClassVar[Schema]
    effect: ClassVar[Effect]
    weight: ClassVar[int] = 1
    kinds: ClassVar[Collection[str] | None] = None
    writes: ClassVar[bool] = False
    is_method: ClassVar[bool] = True
    moves: ClassVar[Sequence[Mapping[str, Any]]] = ()
    messages: ClassVar[Mapping[str, tuple[Types, Types]]] = {}
    has_misuse: ClassVar[bool] = False
    text: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = {name for base in cls.__mro__ for name in vars(base)}
        if "name" not in declared:  # a base of operations
            return
        needed = {"effect"}
        if cls.get_answer is Operation.get_answer:
            needed.add("answer")
        if missing := sorted(needed - declared):
            raise TypeError(f"{cls.__name__} declares no {' and no '.join(missing)}")

    def get_answer(self, kind: str) -> Schema:
        """Returns the JSON Schema of its answer where the cache is of this kind."""
        return self.answer

    def get_method(self) -> str | None:
        """Returns the method that a cache needs; None for none."""
        return self.name if self.is_method else None

    def follows(self, expected: Answer) -> bool:
        """Says whether the model moves on only with a backend's answer; see `resolve`.

        Args:
            expected: what the answer must be.
        """
        return type(self).resolve is not Operation.resolve

    def why_illegal(self, op: Op, model: Any) -> str | None:
        """Says why `op` cannot be asked in the model's state; such a step is skipped.

        Returns:
            The reason, or None if `op` is legal.
        """
        return None

    @abstractmethod
    def draw(self, source: Source, model: Any) -> Op | None:
        """Draws an operation that is legal now, or None; defaults may be missing."""

    def draw_misuse(self, source: Source, model: Any) -> Op | None:
        """Draws an operation that breaks a rule of usage, or None."""
        return None

    def run(self, op: Op, side: Any) -> Answer:
        """Carries `op` out where both sides are asked in the same words.

        Args:
            op: the operation, every field set.
            side: the reference model or the system under test; both have the methods that
                are called here.
        """
        raise NotImplementedError(f"{self.name}: run, or run_reference and run_backend")

    def run_reference(self, op: Op, model: Any) -> Answer:
        """Carries `op` out on the reference model; returns the answer it must get."""
        return self.run(op, model)

    def run_backend(self, op: Op, system: Any, model: Any) -> Answer:
        """Carries `op` out on the system under test; returns its answer.

        Args:
            op: the operation, every field set.
            system: the system under test.
            model: the reference after `op`, for reading only.
        """
        return self.run(op, system)

    def resolve(self, op: Op, model: Any, observed: Answer) -> None:  # noqa: B027
        """Lets the model follow an answer out of several that `run_reference` allows.

        An expectation that is `{"one_of": [answers]}`, or that has `{"one_of": [values]}`
        or `{"between": [low, high]}` as a value, leaves the choice to the backend; such
        an operation moves its model on here, not in `run_reference`.

        Args:
            op: the operation, every field set.
            model: the reference; before the operation, if there was a choice.
            observed: the backend's answer, which is allowed; where no backend runs, the
                first allowed one.
        """

    def verify(self, op: Op, system: Any, model: Any) -> None:  # noqa: B027
        """Checks what else came with an answer that agrees.

        Args:
            op: the operation, every field set.
            system: the system under test.
            model: the reference after `op`; its tag is still that of `op`.

        Raises:
            Broken: something is wrong.
        """

    def describe(self, op: Op) -> str:
        """Puts `op` in words, as a line of a report."""
        if self.text:
            return self.text.format_map(op)
        return f"{self.name} {format_fields(op, self.fields)}".rstrip()

    def describe_row(self, op: Op, row: int) -> str:
        """Puts one row of the answer to `op` in words."""
        return f"row {row}"

    @cache  # noqa: B019 - one object for each operation, for as long as the process
    def get_defaults(self) -> Op:
        """Returns the operation with the fields that may be left out."""
        defaults = {
            name: schema["default"]
            for name, schema in self.fields.items()
            if "default" in schema
        }
        return {"op": self.name, **defaults}

    def complete(self, op: Op) -> dict[str, Any]:
        """Returns `op` with every field set."""
        return {**self.get_defaults(), **op}

    def count_tags(self, op: Op) -> int:
        """Counts the tags that `op` uses up, whether or not it runs."""
        return 0


def index(*operations: Own) -> dict[str, Own]:
    """Returns the operations by name."""
    return {operation.name: operation for operation in operations}


def format_fields(op: Op, names: Iterable[str]) -> str:
    """Lists fields with their values: "slot 2, count 3"."""
    return ", ".join(f"{name} {op[name]}" for name in names)


# --- names in operations ----------------------------------------------------------------


Operations = Mapping[str, Operation]


@cache
def list_fields(operation: Operation, sort: str) -> Sequence[str]:
    """Lists the fields that hold names of a sort; those with a default come first.

    A field holds a name, or a list of names, if its schema says of what sort
    (`core.document.NAMES`).
    """
    schemas = operation.fields.items()
    named = [name for name, schema in schemas if schema.get(NAMES) == sort]
    return sorted(named, key=lambda name: "default" not in operation.fields[name])


def list_names(op: Op, operations: Operations, sort: str) -> list[Any]:
    """Lists the names of a sort in an operation, in order."""
    values = [op.get(field) for field in list_fields(operations[op["op"]], sort)]
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [name for names in lists for name in names if name is not None]


def rename(op: Op, operations: Operations, sort: str, names: Mapping[Any, Any]) -> Op:
    """Returns the operation with other names of a sort; unknown names stay."""
    renamed = dict(op)
    for field in list_fields(operations[op["op"]], sort):
        if field in op:
            value = op[field]
            renamed[field] = (
                [names.get(name, name) for name in value]
                if isinstance(value, list)
                else names.get(value, value)
            )
    return renamed


def number_names(
    ops: Sequence[Op], operations: Operations, letters: Mapping[str, Callable[[int], str]]
) -> list[Op]:
    """Renames everything in the order of its appearance.

    Args:
        ops: the operations of a program.
        operations: all operations, by name.
        letters: for each sort, what the first is called, the second, and so on. A default
            is there from the start and keeps its name.
    """
    renamed = list(ops)
    for sort, letter in letters.items():
        defaults = [
            operation.fields[field].get("default")
            for operation in operations.values()
            for field in list_fields(operation, sort)
        ]
        names = {name: name for name in defaults if name is not None}
        for op in ops:
            for name in list_names(op, operations, sort):
                names.setdefault(name, letter(len(names)))
        if names:
            renamed = [rename(op, operations, sort, names) for op in renamed]
    return renamed


# --- the loop over operations and the reference -----------------------------------------


@dataclass(slots=True, eq=False)
class Step:
    """One operation of a program, about to run on the reference.

    Attributes:
        number: its place in the program, from 0.
        op: with every field set.
        model: the reference; before the operation until `run_reference` is called,
            after it from then on.
        operation: the definition of the operation in its contract.
        skipped: why the operation cannot be asked now; None if it can.
        states: the abstract states before the operation, if somebody has noted them.
        is_resolved: the reference was asked to follow an answer.
        resolved: that answer, if the reference has followed it.
    """

    number: int
    op: Op
    model: Any
    operation: Operation
    skipped: str | None
    states: Sequence[str] | None = None
    answer: Answer | None = None
    is_resolved: bool = False
    resolved: Answer | None = None
    is_finished: bool = False

    def run_reference(self) -> Answer:
        """Runs the operation on the reference, once; the answer that it must get."""
        if self.answer is None:
            self.answer = self.operation.run_reference(self.op, self.model)
        return self.answer

    def resolve(self, observed: Answer) -> None:
        """Lets the reference follow an answer that a backend gave and that is allowed."""
        self.is_resolved = True
        self.operation.resolve(self.op, self.model, observed)
        self.resolved = observed

    @property
    def follows(self) -> bool:
        """Whether the reference has not moved on before it follows an answer."""
        return self.answer is not None and self.operation.follows(self.answer)

    def finish(self) -> None:
        """Completes the step on the reference, once, so that the next one can come.

        Where no backend answered, the reference follows the first allowed answer.
        """
        if self.is_finished:
            return
        self.is_finished = True
        if self.skipped is None:
            answer = self.run_reference()
            if not self.is_resolved:
                self.resolve(get_first_allowed(answer))
        self.model.tag += self.operation.count_tags(self.op)


def iter_steps(
    operations: Mapping[str, Operation], model: Any, ops: Iterable[Op]
) -> Iterator[Step]:
    """Each step, with the reference before it; the caller may run it, or leave it to the
    loop.

    Args:
        operations: of the contract, by name.
        model: the reference, empty.
        ops: the operations of a program.
    """
    for number, op in enumerate(ops):
        operation = operations[op["op"]]
        step = Step(number, op, model, operation, operation.why_illegal(op, model))
        yield step
        step.finish()


def advance(operations: Mapping[str, Operation], op: Op, model: Any) -> None:
    """Takes the reference past an operation that is legal."""
    operation = operations[op["op"]]
    answer = operation.run_reference(op, model)
    operation.resolve(op, model, get_first_allowed(answer))
    model.tag += operation.count_tags(op)


def get_first_allowed(answer: Answer) -> Answer:
    """The answer with the first allowed value wherever there is a choice; see
    `Operation.resolve`.

    An answer without a choice is returned as it is.
    """
    if "one_of" in answer:
        return get_first_allowed(answer["one_of"][0])
    chosen = {
        name: value.get("one_of", value.get("between", [value]))[0]
        for name, value in answer.items()
        if isinstance(value, Mapping) and ("one_of" in value or "between" in value)
    }
    return {**answer, **chosen} if chosen else answer
