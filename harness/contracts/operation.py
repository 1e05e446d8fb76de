"""Defines operations and their types, renames names, and runs the reference."""

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
"""One operation of a program: {"op": name, field: value, …}, with all fields set."""

Config = Mapping[str, Any]
"""The config of a program: {"kind": name, field: value, …}, with all fields set."""

Answer = dict[str, Any]
"""The answer to an operation as in a trace: {"offset": 3, "visible": […]}."""

Types = Mapping[str, Any]
"""Field of a driver message → its type."""

Cell = tuple[str, str]
"""(abstract state, operation that runs in this state): the unit of coverage of a run."""

T = TypeVar("T")
Own = TypeVar("Own", bound="Operation")

Fields = dict[str, Any] | None
"""The drawn fields of an operation; None if the operation is not legal now."""


class HeldToken(NamedTuple):
    """A token in the reference, with its position.

    Attributes:
        tag: the tag of the token.
        position: the position of the token.
        sequences: the sequences that contain the token; empty if the cache has only one
            sequence.
        is_old: whether the backend may already have dropped the token.
    """

    tag: int
    position: int
    sequences: tuple[int, ...] = ()
    is_old: bool = False


Held = tuple[str, Sequence[HeldToken]]
"""The name of a cache or of a part of a cache, and the reference's tokens in it."""


ERRORS: Mapping[type[Exception], str] = {
    ValueError: "usage",
    CacheFull: "cache-full",
    NotSupported: "not-supported",
    Shared: "shared",
    NoSlot: "no-slot",
}
"""Exception of the reference → the name of the refusal."""


def ask(call: Callable[[], Any]) -> Answer:
    """Calls the reference and returns its answer.

    Returns:
        {"result": value}, or {} for the value None; {"error": name} for a refusal. If
        there are several reasons to refuse, the answer allows an error for each reason.
    """
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
    """Returns the answer if there is a single answer; otherwise {"one_of": answers}. See
    `Operation.resolve`."""
    return answers[0] if len(answers) == 1 else {"one_of": list(answers)}


def list_allowed(answer: Answer) -> list[Answer]:
    """Lists the whole answers that an expected answer allows."""
    return list(answer.get("one_of", [answer]))


def agrees(expected: Any, observed: Any) -> bool:
    """Tells whether an observed answer matches an expected answer.

    The observed answer may have additional fields, and lists instead of tuples. The order
    of tokens matters.
    """
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
    """Makes all random choices of a generator."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """Returns an integer in [0, limit), for limit ≥ 1; 0 is the simplest choice."""

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def one_in(self, number: int) -> bool:
        """Returns True with probability 1/number; shrinks towards False."""
        return self.below(number) == number - 1

    def renew(self) -> None:  # noqa: B027
        """Marks the end of an operation's choices; called between operations."""


class Simplest(Source):
    """Always makes the simplest choice."""

    def below(self, limit: int) -> int:
        return 0


# --- an operation -----------------------------------------------------------------------


class Effect(Flag):
    """The effect of an operation on the tokens in caches.

    Attributes:
        ADDS: the operation adds new tokens.
        REMOVES: the operation removes tokens.
        MOVES: the operation moves or copies tokens to another row, sequence, name or
            position, and replaces the tokens there.
        READS: the operation only answers; all tokens stay.
        CONTROL: none of the other effects; for example, the operation announces a
            pass, sets a limit or must be refused.
    """

    ADDS = auto()
    REMOVES = auto()
    MOVES = auto()
    READS = auto()
    CONTROL = auto()


class Operation(ABC):
    """Defines one operation of a contract completely.

    Attributes:
        name: the operation's name in programs.
        fields: the JSON Schema of each field.
        answer: the JSON Schema of the answer; see `get_answer`. Required.
        effect: the effect on the tokens in caches. Required.
        weight: how often the operation is drawn, relative to other operations.
        kinds: the kinds that have the operation; None for all kinds.
        writes: whether the operation may invalidate earlier views of the cache.
        is_method: whether a cache needs a method with the operation's name.
        moves: the fields of moves that `Contract.get_world` adds to the moves of
            `Contract.get_domain`.
        messages: the driver messages that cannot be derived from `fields` and `answer`,
            such as messages with arrays; see `backends.driver.messages`.
        has_misuse: whether `draw_misuse` can draw an invalid call.
        text: a template for descriptions, with field names in braces; if empty, a
            description lists all fields.
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
        if "name" not in declared:  # an abstract base class of operations
            return
        needed = {"effect"}
        if cls.get_answer is Operation.get_answer:
            needed.add("answer")
        if missing := sorted(needed - declared):
            raise TypeError(f"{cls.__name__} declares no {' and no '.join(missing)}")

    def get_answer(self, kind: str) -> Schema:
        """Returns the JSON Schema of the operation's answer for a kind of cache."""
        return self.answer

    def get_method(self) -> str | None:
        """Returns the name of the method that a cache needs, or None."""
        return self.name if self.is_method else None

    def follows(self, expected: Answer) -> bool:
        """Tells whether the model needs the backend's answer to continue; see `resolve`.

        Args:
            expected: the expected answer.
        """
        return type(self).resolve is not Operation.resolve

    def why_illegal(self, op: Op, model: Any) -> str | None:
        """Returns the reason why `op` is illegal in the model's state, or None.

        An illegal step is skipped.
        """
        return None

    @abstractmethod
    def draw(self, source: Source, model: Any) -> Op | None:
        """Draws a legal operation, or None; fields with a default may be missing."""

    def draw_misuse(self, source: Source, model: Any) -> Op | None:
        """Draws an invalid call that the backend must refuse, or None."""
        return None

    def run(self, op: Op, side: Any) -> Answer:
        """Runs `op` on the reference or on the backend, if the code is the same for both.

        Args:
            op: the operation, with all fields set.
            side: the reference model or the system under test; both must have the
                methods that this function calls.
        """
        raise NotImplementedError(f"{self.name}: run, or run_reference and run_backend")

    def run_reference(self, op: Op, model: Any) -> Answer:
        """Runs `op` on the reference model and returns the expected answer."""
        return self.run(op, model)

    def run_backend(self, op: Op, system: Any, model: Any) -> Answer:
        """Runs `op` on the system under test and returns the system's answer.

        Args:
            op: the operation, with all fields set.
            system: the system under test.
            model: the reference after `op`; read-only.
        """
        return self.run(op, system)

    def resolve(self, op: Op, model: Any, observed: Answer) -> None:  # noqa: B027
        """Updates the model to the answer that the backend chose.

        The backend may choose if the expected answer is `{"one_of": [answers]}`, or has
        the value `{"one_of": [values]}` or `{"between": [low, high]}` in a field. Such
        an operation updates the model here, not in `run_reference`.

        Args:
            op: the operation, with all fields set.
            model: the reference; if the backend had a choice, the reference before the
                operation.
            observed: the backend's answer, which is allowed; without a backend, the
                first allowed answer.
        """

    def verify(self, op: Op, system: Any, model: Any) -> None:  # noqa: B027
        """Runs additional checks after an answer that matches the expected answer.

        Args:
            op: the operation, with all fields set.
            system: the system under test.
            model: the reference after `op`; `model.tag` is still the first tag of `op`.

        Raises:
            Broken: a check has failed.
        """

    def describe(self, op: Op) -> str:
        """Formats `op` as a line of a report."""
        if self.text:
            return self.text.format_map(op)
        return f"{self.name} {format_fields(op, self.fields)}".rstrip()

    def describe_row(self, op: Op, row: int) -> str:
        """Formats the name of one row of the answer to `op`."""
        return f"row {row}"

    @cache  # noqa: B019 - an operation is a singleton and lives as long as the process
    def get_defaults(self) -> Op:
        """Returns the operation's name and the default values of its optional fields."""
        defaults = {
            name: schema["default"]
            for name, schema in self.fields.items()
            if "default" in schema
        }
        return {"op": self.name, **defaults}

    def complete(self, op: Op) -> dict[str, Any]:
        """Returns `op` with all fields set; missing fields get their default."""
        return {**self.get_defaults(), **op}

    def count_tags(self, op: Op) -> int:
        """Counts the tags that `op` consumes, even if the step is skipped."""
        return 0


def index(*operations: Own) -> dict[str, Own]:
    """Returns the operations by name."""
    return {operation.name: operation for operation in operations}


def format_fields(op: Op, names: Iterable[str]) -> str:
    """Formats fields with their values: "slot 2, count 3"."""
    return ", ".join(f"{name} {op[name]}" for name in names)


def get_given(op: Op, names: Iterable[str]) -> dict[str, Any]:
    """Returns the fields that are set: name → value."""
    return {name: op[name] for name in names if op.get(name) is not None}


# --- names in operations ----------------------------------------------------------------


Operations = Mapping[str, Operation]


@cache
def list_fields(operation: Operation, sort: str) -> Sequence[str]:
    """Lists the fields that hold names of a sort; fields with a default come first.

    A field holds a name or a list of names if its schema has the key
    `core.document.NAMES`, whose value is the sort.
    """
    schemas = operation.fields.items()
    named = [name for name, schema in schemas if schema.get(NAMES) == sort]
    return sorted(named, key=lambda name: "default" not in operation.fields[name])


def list_names(op: Op, operations: Operations, sort: str) -> list[Any]:
    """Lists the names of one sort in an operation, in the order of its fields."""
    values = [op.get(field) for field in list_fields(operations[op["op"]], sort)]
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [name for names in lists for name in names if name is not None]


def rename(op: Op, operations: Operations, sort: str, names: Mapping[Any, Any]) -> Op:
    """Returns the operation with the names of one sort replaced; unknown names stay."""
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
    """Renames all names in the operations, in the order of first appearance.

    A name that is the default of a field keeps its name and comes first.

    Args:
        ops: the operations of a program.
        operations: all operations, by name.
        letters: sort of names → a function from an index to the new name.
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


NOT_FOLLOWED: Answer = {"followed": False}
"""Differs from each answer of an operation."""


@dataclass(slots=True, eq=False)
class Step:
    """One operation of a program, to be run on the reference.

    Attributes:
        number: the index in the program, from 0.
        op: the operation, with all fields set.
        model: the reference; `run_reference` changes it from the state before the
            operation to the state after the operation.
        operation: the definition of the operation in its contract.
        skipped: the reason why the operation is illegal now; None if it is legal.
        states: the abstract states before the operation; None if not recorded.
        answer: the expected answer; None until `run_reference` is called.
        resolved: the answer that the reference has followed; None before `resolve`, and
            `NOT_FOLLOWED` if `resolve` failed.
        is_finished: whether `finish` was called.
    """

    number: int
    op: Op
    model: Any
    operation: Operation
    skipped: str | None
    states: Sequence[str] | None = None
    answer: Answer | None = None
    resolved: Answer | None = None
    is_finished: bool = False

    def run_reference(self) -> Answer:
        """Runs the operation on the reference once; returns the expected answer."""
        if self.answer is None:
            self.answer = self.operation.run_reference(self.op, self.model)
        return self.answer

    def resolve(self, observed: Answer) -> None:
        """Updates the reference to an allowed answer of the backend."""
        self.resolved = NOT_FOLLOWED
        self.operation.resolve(self.op, self.model, observed)
        self.resolved = observed

    @property
    def follows(self) -> bool:
        """Whether the reference needs the backend's answer to continue."""
        return self.answer is not None and self.operation.follows(self.answer)

    def finish(self) -> None:
        """Completes the step on the reference once, before the next step.

        Without a backend's answer, the reference follows the first allowed answer.
        """
        if self.is_finished:
            return
        self.is_finished = True
        if self.skipped is None:
            answer = self.run_reference()
            if self.resolved is None:
                self.resolve(get_first_allowed(answer))
        self.model.tag += self.operation.count_tags(self.op)


def iter_steps(
    operations: Mapping[str, Operation], model: Any, ops: Iterable[Op]
) -> Iterator[Step]:
    """Yields each step of a program before it runs on the reference. The caller may run
    the step; otherwise, the loop runs it.

    Args:
        operations: the contract's operations, by name.
        model: the empty reference.
        ops: the operations of a program.
    """
    for number, op in enumerate(ops):
        operation = operations[op["op"]]
        step = Step(number, op, model, operation, operation.why_illegal(op, model))
        yield step
        step.finish()


def advance(operations: Mapping[str, Operation], op: Op, model: Any) -> None:
    """Runs a legal operation on the reference. If several answers are allowed, the
    reference follows the first."""
    Step(0, op, model, operations[op["op"]], None).finish()


def get_first_allowed(answer: Answer) -> Answer:
    """Returns the answer with the first allowed value for each choice.

    An answer without a choice is returned unchanged. See `Operation.resolve`.
    """
    if "one_of" in answer:
        return get_first_allowed(answer["one_of"][0])
    chosen = {
        name: value.get("one_of", value.get("between", [value]))[0]
        for name, value in answer.items()
        if isinstance(value, Mapping) and ("one_of" in value or "between" in value)
    }
    return {**answer, **chosen} if chosen else answer
