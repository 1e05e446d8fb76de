"""The view of failures: the same for the page, the summary and the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from lockstep.harness.core.errors import clean
from lockstep.harness.execution.causes import Evidence, gather_evidence
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.jobs.outcome import OPTIONS, get_replay_line
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    read_flaky,
)
from lockstep.harness.programs.words import (
    describe_config,
    describe_failure,
    describe_line,
)
from lockstep.harness.reports.causes import Group, group_failures
from lockstep.harness.reports.model import (
    OutcomeSummary,
    PairSummary,
    format_amount,
    format_verdict,
    list_notes,
    list_remarks,
)

# --- a failure as its file tells it, which is not trusted, and as it runs again ---------


@dataclass(frozen=True)
class Saved:
    """A program, and what its file says of how it failed, which is not trusted.

    Attributes:
        path: of its file.
        what, step, message: of the divergence.
        cause: the outcome and the number that its cause has there; see `Failure`.
        flaky: the failure did not come back each time.
        programs: how many have shown the signature.
        options, answers: see `Failure`.
    """

    program: Program
    path: str
    backend: str | None = None
    signature: str | None = None
    what: str | None = None
    step: int | None = None
    message: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cause: tuple[str, int] | None = None
    flaky: Flaky | None = None
    programs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """The lines below the failure."""
        return list_remarks(self.programs, self.flaky, self.answers)

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
        snippet: see `harness.execution.scripts`; it is written anew, never taken from a
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
    """Runs programs again; see `harness.reports.pages.gather.Stage`."""

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
                self.saved[place] = replace(
                    fuller,
                    cause=before.cause or saved.cause,
                    flaky=before.flaky or saved.flaky,
                    programs=before.programs or saved.programs,
                    answers=before.answers or saved.answers,
                )
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
        flaky=read_flaky(meta),
        options=read_options(meta),
    )


def read_options(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the check that found a failure, as far as they can be used."""
    return {
        name: meta[name]
        for name, types in OPTIONS.items()
        if type(meta.get(name)) in types and 0 < meta[name] <= MOST_SECONDS
    }


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


# --- the view ---------------------------------------------------------------------------


MOST_PLAYED = 40
"""Failures that are shown step by step; of others, there is the sentence."""

MOST_LISTED = 400

MOST_PROGRAM = 16_000
"""Characters of a program that is shown."""

MOST_SENTENCE = 600

MOST_SECONDS = 3600
"""Of an option in a file; no option takes more."""


@dataclass(frozen=True)
class FailureView:
    """One failure: what its file says, and what was seen when it ran again.

    number: from 1.
    """

    number: int
    saved: Saved
    played: Played

    @property
    def unreached(self) -> str:
        """Words for the steps behind the last one that ran; empty if all ran."""
        steps = self.played.steps
        more = self.operations - steps[-1].number - 1 if steps else 0
        if not more:
            return ""
        return f"{more} more step{' was' if more == 1 else 's were'} not reached"

    def describe_gap(self, place: int) -> str:
        """Words for the steps left out before the one at `place` of those that are shown;
        empty if there are none."""
        steps = self.played.steps
        first = steps[place - 1].number + 1 if place else 0
        last = steps[place].number - 1
        if first >= last:
            return f"step {last} is left out" if first == last else ""
        return f"steps {first} to {last} are left out"

    @property
    def what(self) -> str:
        seen = self.played.divergence
        return seen.what if seen else self.saved.what or "program"

    @property
    def message(self) -> str:
        """The sentence that says what differs."""
        seen = self.played.divergence
        said = self.saved.message or "its file does not say how it failed"
        return clean(seen.message if seen else said, MOST_SENTENCE)

    @property
    def step(self) -> int | None:
        """The step that diverges."""
        seen = self.played.divergence
        return seen.step if seen else self.saved.step

    def tell(self, most: int) -> list[str]:
        """The failure in words, with at most so many steps."""
        return [
            *describe_failure(
                self.saved.program, self.step, self.what, self.message, most
            )
        ]

    @property
    def line(self) -> str:
        """The failure in one line."""
        program, message = self.saved.program, self.message
        return clean(describe_line(program, self.step, message), MOST_SENTENCE)

    @property
    def evidence(self) -> Evidence:
        """What it tells of its cause."""
        is_told = self.played.divergence or self.saved.message
        message = self.message if is_told else self.saved.path
        return gather_evidence(self.saved.program, self.step, self.what, message)

    @property
    def name(self) -> str:
        """The backend that the failure is about."""
        return self.saved.backend or self.played.backend or "no backend"

    @property
    def replay(self) -> str:
        """The line that runs it again; of a file in a zip, all of that."""
        zipped, is_in_zip, _ = self.saved.path.partition(".zip!")
        path = Path(f"{zipped}.zip" if is_in_zip else self.saved.path)
        backend = self.played.backend or self.saved.backend or "NAME"
        return get_replay_line(path, backend, self.saved.options)

    @property
    def operation(self) -> str:
        ops = self.saved.program.ops
        return str(ops[-1 if self.step is None else self.step]["op"]) if ops else "open"

    @property
    def signature(self) -> str:
        program = self.saved.program
        own = f"{program.contract}-{program.kind}-{self.operation}-{self.what}"
        return self.saved.signature or own

    @property
    def config(self) -> str:
        return clean(describe_config(self.saved.program))

    @property
    def operations(self) -> int:
        return len(self.saved.program.ops)

    @property
    def program_text(self) -> str | None:
        """The program as it stands in a file, an operation a line; None if it is long."""
        document = replace(self.saved.program, meta={}).to_json()
        ops = ",\n  ".join(json.dumps(op) for op in document.pop("ops"))
        head = json.dumps(document)[:-1]
        text = f'{head},\n "ops": [\n  {ops}]}}'
        return text if len(text) <= MOST_PROGRAM else None


@dataclass(frozen=True)
class ReportView:
    """All that a report shows. more: failures that are not even listed."""

    outcomes: Sequence[OutcomeSummary]
    failures: Sequence[FailureView]
    broken: Sequence[str]
    more: int = 0

    @cached_property
    def groups(self) -> list[Group[FailureView]]:
        """The failures by their likely causes."""
        failures = self.failures
        return group_failures(
            failures,
            [one.evidence for one in failures],
            [one.name for one in failures],
            [one.saved.cause for one in failures],
        )

    @property
    def pairs(self) -> list[PairSummary]:
        return [pair for outcome in self.outcomes for pair in outcome.pairs]

    @property
    def notes(self) -> list[str]:
        """The notes below the matrix, each line once."""
        notes = (note for outcome in self.outcomes for note in list_notes(outcome))
        return list(dict.fromkeys(note.format() for note in notes))

    @property
    def missed(self) -> int:
        """The number of cells that were never reached."""
        return sum(pair.missed for pair in self.pairs)

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return format_verdict(self.outcomes, len(self.failures) + self.more)

    @property
    def summary(self) -> str:
        """Words for the amount that was run."""
        if not self.pairs:
            return "no outcome of a check: programs from files"
        return format_amount(self.outcomes)


def make_report(
    material: Material, stage: Play | None, bounds: Bounds | None = None
) -> ReportView:
    """stage: where programs are played again; None to show what was recorded."""
    listed = material.saved[:MOST_LISTED]
    failures = [
        make_failure(
            number, saved, stage if number <= MOST_PLAYED else None, bounds or Bounds()
        )
        for number, saved in enumerate(listed, 1)
    ]
    more = len(material.saved) - len(listed)
    return ReportView(material.outcomes, failures, material.broken, more)


def make_failure(
    number: int, saved: Saved, stage: Play | None, bounds: Bounds
) -> FailureView:
    played = stage.play(saved, bounds) if stage else Played("recorded", ())
    return FailureView(number, saved, played)
