"""An operation of a contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.document import Schema


class Operation(ABC):
    """One operation of a contract: everything there is to know about it.

    Attributes:
        name: its name in programs.
        fields: the JSON Schema of each field.
        weight: how often it is drawn, compared with others.
        kinds: the kinds that have it; None for all.
        writes: views of the cache that were handed out need not hold after it.
        is_method: a cache needs a method of this name.
        has_misuse: `draw_misuse` draws something.
    """

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, Schema]] = {}
    weight: ClassVar[int] = 1
    kinds: ClassVar[Collection[str] | None] = None
    writes: ClassVar[bool] = False
    is_method: ClassVar[bool] = True
    has_misuse: ClassVar[bool] = False

    def illegal(self, op: Op, model: Any) -> str | None:
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
        raise NotImplementedError(f"{self.name}: run, or expect and observe")

    def expect(self, op: Op, model: Any) -> Answer:
        """Carries `op` out on the reference model; returns the answer it must get."""
        return self.run(op, model)

    def observe(self, op: Op, system: Any, model: Any) -> Answer:
        """Carries `op` out on the system under test; returns its answer.

        Args:
            op: the operation, every field set.
            system: the system under test.
            model: the reference after `op`, for reading only.
        """
        return self.run(op, system)

    def accept(self, op: Op, model: Any, observed: Answer) -> None:  # noqa: B027
        """Lets the model follow an answer out of several that `expect` allows.

        An expectation that is `{"one_of": [answers]}`, or that has `{"one_of": [values]}`
        or `{"between": [low, high]}` as a value, leaves the choice to the backend; such
        an operation moves its model on here, not in `expect`.

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
        return f"{self.name} {say_fields(op, self.fields)}".rstrip()

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

    def tokens(self, op: Op) -> int:
        """Counts the tags that `op` uses up, whether or not it runs."""
        return 0


def index(*operations: Operation) -> dict[str, Operation]:
    """Returns the operations by name."""
    return {operation.name: operation for operation in operations}


def say_fields(op: Op, names: Iterable[str]) -> str:
    """Lists fields with their values: "slot 2, count 3"."""
    return ", ".join(f"{name} {op[name]}" for name in names)
