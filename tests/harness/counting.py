"""Counts the cells that programs reach, for the tests of what is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lockstep.harness.contracts.operation import Cell
from lockstep.harness.programs.program import Program, walk


def count_cells(
    programs: Iterable[Program], counted: Counter[Cell] | None = None
) -> Counter[Cell]:
    """Counts (abstract state, operation) for every step that is not skipped."""
    counted = Counter[Cell]() if counted is None else counted
    for program in programs:
        for step in walk(program, rows=False):
            if step.skipped is None:
                states = program.rules.get_states(step.op, step.model)
                counted.update((state, step.op["op"]) for state in states)
    return counted
