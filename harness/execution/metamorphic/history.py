"""A program and what the reference answered to it: what every relation starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.programs.program import Program


@dataclass(frozen=True)
class Step:
    """One operation that was carried out.

    number: its place in the program, from 0. tags: those of its tokens. The tokens of a
    program are numbered as they come: after an update with 3 tokens, one with 2 has the
    tags 3 and 4.
    """

    number: int
    op: Op
    answer: Answer
    tags: range

    @property
    def name(self) -> str:
        return str(self.op["op"])


@dataclass(frozen=True)
class History:
    """A program and its answers. steps: without the operations that were skipped."""

    program: Program
    steps: Sequence[Step]

    def get_step(self, number: int) -> Step:
        return next(step for step in self.steps if step.number == number)


def make_history(program: Program, answers: Sequence[Answer]) -> History:
    operations = program.rules.operations
    steps, tag = [], 0
    for number, (op, answer) in enumerate(zip(program.ops, answers, strict=True)):
        end = tag + operations[op["op"]].tokens(op)
        if "skipped" not in answer:
            steps.append(Step(number, op, answer, range(tag, end)))
        tag = end
    return History(program, steps)


class Book(ABC):
    """Who holds which tokens, step by step.

    It is written from the operations and their answers alone. An answer is believed: if
    a trim by 3 answers that 2 tokens were trimmed, 2 are struck out. So a book says what
    the reference claims to hold, and the relations check whether it acts accordingly.
    """

    @classmethod
    @abstractmethod
    def open(cls, history: History) -> Self:
        """The book before the first step."""

    @abstractmethod
    def write(self, step: Step) -> None:
        """Enters what a step has done."""

    @classmethod
    def before(cls, history: History, number: int | None = None) -> Self:
        """The book before the step of that number; without one, after all steps."""
        book = cls.open(history)
        for step in history.steps:
            if step.number == number:
                break
            book.write(step)
        return book

    @classmethod
    def along(cls, history: History) -> Iterator[tuple[Step, Self]]:
        """Each step with the book before it. It is one book that changes as steps go by:
        read it before the next step is asked for."""
        book = cls.open(history)
        for step in history.steps:
            yield step, book
            book.write(step)
