"""Runs a program for a script of what was asked in each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Step
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.snippet import Noting, cut
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program


class Notes(Protocol):
    """What is asked of a backend, step by step."""

    def watch(self) -> Backend:
        """The backend, of which everything is noted that it is asked."""

    def begin(self) -> None:
        """A step begins."""

    def end(self) -> None:
        """The program is over: what follows is not noted."""


AnyNotes = TypeVar("AnyNotes", bound=Notes)


@dataclass(eq=False)
class Followed(Noting):
    """A run of a backend whose calls are noted.

    Attributes:
        notes: of the calls.
        last: the last step that ran.
        opened: the system under test, which is still there when the run is over.
    """

    notes: Notes | None = None
    last: Step | None = None
    opened: Any = None

    def open_system(self) -> Any:
        system = self.opened = super().open_system()
        finish = system.finish

        def end() -> None:
            assert self.notes is not None
            self.notes.end()
            finish()

        system.finish = end
        return system

    def begin(self, step: Step) -> None:
        assert self.notes is not None
        self.notes.begin()
        self.last = step if step.skipped is None else self.last
        super().begin(step)


def follow(
    program: Program, backend: Backend, take_notes: Callable[[], AnyNotes]
) -> tuple[AnyNotes, Followed]:
    """Runs a program; with every check only if it agrees without: these look at more, and
    fill padding with other numbers."""
    for every in (False, True):
        notes = take_notes()
        run = Followed(program, notes.watch(), every, notes=notes)
        run.run()
        if run.result.divergence is not None:
            break
    return notes, run


def prepare(program: Program, backend: Backend) -> Program:
    """The program up to the step at which it failed, with names of ours.

    Raises:
        UsageError: the backend cannot run it, or no script can show it.
    """
    unsupported = why_unsupported(program, backend)
    if unsupported:
        raise UsageError(unsupported)
    return cut(give_own_names(program))


def give_own_names(program: Program) -> Program:
    """The same program without the texts of its file: what is named has other names.

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
    return replace(program, ops=ops)
