"""The one loop over operations and the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.harness.contracts.operation import Operation
from lockstep.harness.contracts.types import Answer, Op


@dataclass(slots=True, eq=False)
class Step:
    """One operation of a program, about to run on the reference.

    Attributes:
        number: its place in the program, from 0.
        op: with every field set.
        model: the reference; before the operation until `expect` is called, after it
            from then on.
        operation: the definition of the operation in its contract.
        skipped: why the operation cannot be asked now; None if it can.
    """

    number: int
    op: Op
    model: Any
    operation: Operation
    skipped: str | None
    answer: Answer | None = None
    is_accepted: bool = False
    is_finished: bool = False

    def expect(self) -> Answer:
        """Runs the operation on the reference, once; the answer that it must get."""
        if self.answer is None:
            self.answer = self.operation.expect(self.op, self.model)
        return self.answer

    def accept(self, observed: Answer) -> None:
        """Lets the reference follow an answer that a backend gave and that is allowed."""
        self.is_accepted = True
        self.operation.accept(self.op, self.model, observed)

    def finish(self) -> None:
        """Completes the step on the reference, once, so that the next one can come.

        Where no backend answered, the reference follows the first allowed answer.
        """
        if self.is_finished:
            return
        self.is_finished = True
        if self.skipped is None:
            answer = self.expect()
            if not self.is_accepted:
                self.accept(get_first_allowed(answer))
        self.model.tag += self.operation.tokens(self.op)


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
        step = Step(number, op, model, operation, operation.illegal(op, model))
        yield step
        step.finish()


def advance(operations: Mapping[str, Operation], op: Op, model: Any) -> None:
    """Takes the reference past an operation that is legal."""
    operation = operations[op["op"]]
    answer = operation.expect(op, model)
    operation.accept(op, model, get_first_allowed(answer))
    model.tag += operation.tokens(op)


def get_first_allowed(answer: Answer) -> Answer:
    """The answer with the first allowed value wherever there is a choice; see
    `Operation.accept`.

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
