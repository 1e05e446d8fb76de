"""The walk along a program with the reference beside it.

Whoever needs to know where a program leads walks along it: the executor, which runs a
backend at each step, the drawer, traces, the ledger, explanations and pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.harness.contracts.step import Step, iter_steps
from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program

MAX_ANSWERED = 1 << 22
"""Numbers in a trace. A chunk of 512 tokens behind 4,096 comes to half of it."""


def walk(program: Program, rows: bool = True) -> Iterator[Step]:
    """Each step of a program, with the reference before it; it may be run by the caller.

    Args:
        program: a complete program.
        rows: answers say what each row sees; without, a walk costs less.
    """
    model = program.rules.open_model(program.config, rows=rows)
    return iter_steps(program.rules.operations, model, program.ops)


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
