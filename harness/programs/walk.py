"""The reference beside a program, step by step: the one loop over both.

Whoever needs to know where a program leads walks along it: the executor, which runs a
backend at each step, the drawer, traces, the ledger, explanations and pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.harness.contracts.base import Contract, Operation
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program

MAX_ANSWERED = 1 << 22
"""Numbers in a trace. A chunk of 512 tokens behind 4,096 comes to half of it."""


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


def walk(program: Program, rows: bool = True) -> Iterator[Step]:
    """Each step of a program, with the reference before it; it may be run by the caller.

    Args:
        program: a complete program.
        rows: answers say what each row sees; without, a walk costs less.
    """
    rules = program.rules
    model = rules.open_model(program.config, rows=rows)
    for number, op in enumerate(program.ops):
        operation = rules.operations[op["op"]]
        step = Step(number, op, model, operation, operation.illegal(op, model))
        yield step
        step.finish()


def advance(rules: Contract, op: Op, model: Any) -> None:
    """Takes the reference past an operation that is legal."""
    operation = rules.operations[op["op"]]
    answer = operation.expect(op, model)
    operation.accept(op, model, get_first_allowed(answer))
    model.tag += operation.tokens(op)


def get_first_allowed(answer: Answer) -> Answer:
    """The answer with the first allowed value wherever there is a choice; see `allows`.

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


def trace(program: Program) -> list[Answer]:
    """The answer that the reference expects of each operation; skipped ones say why.

    Raises:
        UsageError: the answers hold more than MAX_ANSWERED numbers.
    """
    answers: list[Answer] = []
    numbers = 0
    for step in walk(program):
        answers.append({"skipped": step.skipped} if step.skipped else step.expect())
        numbers += count_numbers(answers[-1])
        if numbers > MAX_ANSWERED:
            raise UsageError(
                f"the expected answers hold more than {MAX_ANSWERED:,} numbers; trace a"
                " shorter program"
            )
    return answers


def breaks_usage(program: Program) -> bool:
    """Whether some operation of a program breaks a rule of usage."""
    return any(
        step.skipped is None and step.expect().get("error") == "usage"
        for step in walk(program, rows=False)
    )


def count_numbers(value: Any) -> int:
    """The numbers in an answer, however deep."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        nested = value and isinstance(value[0], list)
        return sum(map(count_numbers, value)) if nested else len(value)
    return 1
