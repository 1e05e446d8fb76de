"""Runs a program, and notes the calls of each step for a script."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from string import ascii_letters, digits
from typing import Any, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import Run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program


@dataclass(eq=False)
class Notes(ABC):
    """The lines for a script, step by step.

    Attributes:
        steps: the lines before the first step, then the lines of each step.
        is_over: whether the program is over; later calls are not noted.
    """

    backend: Backend
    steps: list[list[Any]] = field(default_factory=lambda: [[]])
    is_over: bool = False

    @abstractmethod
    def watch(self) -> Backend:
        """Returns a backend whose calls are noted."""

    def begin(self) -> None:
        """Begins a step."""
        self.steps.append([])


AnyNotes = TypeVar("AnyNotes", bound=Notes)


@dataclass(eq=False, kw_only=True)
class FollowedRun(Run):
    """A run of a backend whose calls are noted.

    Attributes:
        notes: the notes of the calls.
        expected: number of a step → the expected answer.
        observed: number of a step → the answer of the backend.
        last: the last step that ran.
    """

    notes: Notes
    expected: dict[int, Answer] = field(default_factory=dict)
    observed: dict[int, Answer] = field(default_factory=dict)
    last: Step | None = None

    def open_system(self) -> Any:
        system = super().open_system()
        finish = system.finish

        def end() -> None:
            self.notes.is_over = True
            finish()

        system.finish = end
        return system

    def begin(self, step: Step) -> None:
        self.notes.begin()
        self.last = step if step.skipped is None else self.last
        super().begin(step)

    def run_reference(self, step: Step) -> Answer:
        answer = super().run_reference(step)
        if self.refuses or answer.get("error") != "usage":  # else the step is skipped
            self.expected[step.number] = answer
        return answer

    def run_backend(self, step: Step) -> Answer:
        answer = self.observed[step.number] = super().run_backend(step)
        return answer


def follow(
    program: Program, backend: Backend, notes_type: type[AnyNotes]
) -> tuple[AnyNotes, FollowedRun]:
    """Runs a program. If the backend agrees with the reference, runs the program again
    with all costly checks, which read more arrays and fill padding with other numbers."""
    for every in (False, True):
        notes = notes_type(backend)
        watched = notes.watch()
        run = FollowedRun(program=program, backend=watched, every=every, notes=notes)
        run.run()
        if run.result.divergence is not None:
            break
    return notes, run


SPELLED = ("namespace", "adapter", "extras")
"""The fields with names and keys."""


def spell(value: Any, letters: dict[str, str]) -> Any:
    """Replaces letters at every depth of lists: the first letter by "a", the next by "b",
    and so on. Equal names stay equal, and names that begin or end alike still do.

    Args:
        value: a name, a number, None, or a list of such values.
        letters: the replaced letters, to which new letters are added.
    """
    if isinstance(value, list):
        return [spell(item, letters) for item in value]
    if not isinstance(value, str):
        return value
    alphabet = ascii_letters + digits + "_.-"
    return "".join(letters.setdefault(item, alphabet[len(letters)]) for item in value)


def prepare(program: Program, backend: Backend) -> Program:
    """Returns the program up to the failing step, if its file names that step.

    All names are replaced, so that a script contains no text of the file.

    Raises:
        UsageError: the backend cannot run the program, or a token is not a whole number.
    """
    unsupported = why_unsupported(program, backend)
    if unsupported:
        raise UsageError(unsupported)
    letters: dict[str, str] = {}
    ops = []
    for op in program.rules.rename(program.ops):
        tokens = [*(op.get("tokens") or ()), *(op.get("generate") or ())]
        if any(type(token) is not int for token in tokens):
            raise UsageError("a script needs whole numbers as tokens")
        spelled = {name: spell(op[name], letters) for name in SPELLED if name in op}
        ops.append({**op, **spelled})
    step = program.meta.get("step")
    if type(step) is int and 0 <= step < len(ops):
        ops = ops[: step + 1]
    return replace(program, ops=ops)
