"""Runs a program for a script of what was asked in each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import Run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program


@dataclass(eq=False)
class Notes(ABC):
    """What is asked of a backend, step by step.

    Attributes:
        steps: the lines before the first step, and those of each.
        is_over: the program is over: what follows is not noted.
    """

    backend: Backend
    steps: list[list[Any]] = field(default_factory=lambda: [[]])
    is_over: bool = False

    @abstractmethod
    def watch(self) -> Backend:
        """The backend, of which everything is noted that it is asked."""

    def begin(self) -> None:
        """A step begins."""
        self.steps.append([])


AnyNotes = TypeVar("AnyNotes", bound=Notes)


@dataclass(eq=False, kw_only=True)
class FollowedRun(Run):
    """A run of a backend whose calls are noted.

    Attributes:
        notes: of the calls.
        expected: number of a step → the answer that it must get.
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
        if self.refuses or answer.get("error") != "usage":  # else it does not run
            self.expected[step.number] = answer
        return answer

    def run_backend(self, step: Step) -> Answer:
        answer = self.observed[step.number] = super().run_backend(step)
        return answer


def follow(
    program: Program, backend: Backend, take_notes: Callable[[], AnyNotes]
) -> tuple[AnyNotes, FollowedRun]:
    """Runs a program; with every check only if it agrees without: these look at more, and
    fill padding with other numbers."""
    for every in (False, True):
        notes = take_notes()
        watched = notes.watch()
        run = FollowedRun(program=program, backend=watched, every=every, notes=notes)
        run.run()
        if run.result.divergence is not None:
            break
    return notes, run


def prepare(program: Program, backend: Backend) -> Program:
    """The program up to the step at which it failed, if its file says which, with names
    of ours.

    Raises:
        UsageError: the backend cannot run it, or no script can show it.
    """
    unsupported = why_unsupported(program, backend)
    if unsupported:
        raise UsageError(unsupported)
    ops, step = rename(program), program.meta.get("step")
    if type(step) is int and 0 <= step < len(ops):
        ops = ops[: step + 1]
    return replace(program, ops=ops)


def rename(program: Program) -> list[Any]:
    """The operations without the texts of the file: what is named has other names.

    Raises:
        UsageError: some token is not a whole number, which a cache has to refuse.
    """
    spaces: dict[str, str] = {}
    ops = []
    for op in program.rules.rename(program.ops):
        tokens = [*(op.get("tokens") or ()), *(op.get("generate") or ())]
        if any(type(token) is not int for token in tokens):
            raise UsageError("a script writes no tokens but whole numbers")
        space = op.get("namespace")
        if isinstance(space, str):
            op = {**op, "namespace": spaces.setdefault(space, f"n{len(spaces)}")}
        ops.append(op)
    return ops
