"""A failure as its file tells it, which is not trusted, and as it runs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.reports.model import OutcomeSummary


@dataclass(frozen=True)
class Saved:
    """A program, and what its file says of how it failed, which is not trusted.

    Attributes:
        path: of its file.
        what, step, message: of the divergence.
        likely: a line about the failure that is likely the same bug.
    """

    program: Program
    path: str
    backend: str | None = None
    signature: str | None = None
    what: str | None = None
    step: int | None = None
    message: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    likely: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """The same for the same failure, wherever it was found."""
        return self.program.digest(), self.backend


@dataclass(frozen=True)
class Played:
    """The result of running a program again.

    Attributes:
        status: "diverges", "agrees" (now), "crash", "hang", or "recorded" if no backend
            took part.
        notes: why, or what else there is to know.
        stories: where the tokens come from that the divergence is about.
        backend: the one that took part.
        snippet: see `harness.execution.snippet`; it is written anew, never taken from a
            file.
    """

    status: str
    steps: Sequence[Step]
    notes: Sequence[str] = ()
    divergence: Divergence | None = None
    stories: Sequence[str] = ()
    backend: str | None = None
    snippet: str | None = None


class Play(Protocol):
    """Runs programs again; see `harness.reports.pages.play.Stage`."""

    def play(self, saved: Saved, bounds: Bounds) -> Played: ...


@dataclass
class Material:
    """Gathered outcomes and failures. broken: files that cannot be read, a line each."""

    outcomes: list[OutcomeSummary] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, saved: Saved) -> None:
        """Adds a failure once, however many files and outcomes have it: what a file says
        counts more."""
        for place, before in enumerate(self.saved):
            if before.key == saved.key:
                fuller = saved if saved.message is not None else before
                likely = before.likely or saved.likely
                self.saved[place] = replace(fuller, likely=likely)
                return
        self.saved.append(saved)


def read_saved(program: Program, path: str) -> Saved:
    """Reads `meta` of a program's file as far as it has the right form."""
    meta = program.meta
    signature, versions = get_text(meta, "signature"), meta.get("versions")
    return Saved(
        program,
        path,
        get_text(meta, "backend"),
        signature,
        signature.rpartition("-")[2] if signature else None,
        check_step(meta.get("step"), program),
        get_text(meta, "what"),
        dict(list_texts(versions)) if isinstance(versions, Mapping) else {},
    )


def check_step(step: Any, program: Program) -> int | None:
    """The number of a step, if it is one of the program's."""
    return step if isinstance(step, int) and 0 <= step < len(program.ops) else None


def get_text(meta: Mapping[str, Any], name: str) -> str | None:
    value = meta.get(name)
    return value if isinstance(value, str) and value else None


def list_texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, str):
            yield name, value
