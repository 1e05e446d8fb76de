"""The content of a report: failures, from their files and from their reruns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.harness.core.errors import clean
from lockstep.harness.execution.causes import Evidence, gather_evidence
from lockstep.harness.execution.recording.picture import (
    EXTRA,
    HIDDEN,
    MISSING,
    SEEN,
    Step,
)
from lockstep.harness.jobs.failures import OPTIONS, get_replay_line
from lockstep.harness.programs.program import (
    UNSHRUNK,
    Divergence,
    Flaky,
    Program,
    read_beside,
    read_flaky,
)
from lockstep.harness.programs.words import (
    describe_config,
    describe_failure,
    describe_line,
)
from lockstep.harness.reports.causes import Group, group_failures
from lockstep.harness.reports.model import (
    format_amount,
    format_verdict,
    list_notes,
    list_remarks,
    sum_field,
)
from lockstep.harness.reports.outcome_file import OutcomeSummary, PairSummary

SIGNS = {SEEN: "■", HIDDEN: "·", MISSING: "−", EXTRA: "+", " ": " "}
"""The characters of squares."""

MOST_SECONDS = 3600
"""The maximum value of an option in a file; the commands accept no larger value."""

MOST_PROGRAM = 16_000
"""The maximal length of a program that is shown."""

MOST_SENTENCE = 600


@dataclass(frozen=True)
class Played:
    """The result of running a program again.

    Attributes:
        status: "diverges", "agrees" (now), "crash", "hang", or "recorded" if no backend
            ran.
        notes: the reason, and further notes.
        stories: the origin of each token in the divergence.
        backend: the backend that ran the program.
        snippet: the failure as a script, written anew and never taken from a file; see
            `harness.execution.scripts`.
    """

    status: str
    steps: Sequence[Step] = ()
    notes: Sequence[str] = ()
    divergence: Divergence | None = None
    stories: Sequence[str] = ()
    backend: str | None = None
    snippet: str | None = None


@dataclass(frozen=True)
class FailureView:
    """A failure: the data in its file, which is not trusted, and the result of its rerun.

    Attributes:
        path: the path of its file.
        what, step, message: the divergence of the rerun, or else the one in the file.
        cause: the outcome file, and the number of the cause there; see `Failure`.
        flaky: set if the failure does not occur in every run.
        programs: the number of programs with the signature.
        options, answers: see `Failure`.
        number: the number of the failure in the report, from 1.
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
    number: int = 0
    played: Played = Played("recorded")

    @property
    def key(self) -> tuple[str, str | None]:
        """A key that is equal for all records of the same failure."""
        return self.program.digest(), self.backend

    def merge(self, other: FailureView) -> FailureView:
        """Merges two records; a message of `other` takes precedence."""
        fuller = other if other.message is not None else self
        names = ("cause", "flaky", "programs", "answers")
        return replace(
            fuller, **{n: getattr(self, n) or getattr(other, n) for n in names}
        )

    def add_rerun(self, played: Played) -> FailureView:
        """Adds the result of a rerun, whose divergence takes precedence."""
        if (seen := played.divergence) is None:
            return replace(self, played=played)
        signature = seen.get_signature(self.program)
        view = replace(self, played=played, signature=signature, message=seen.message)
        return replace(view, backend=played.backend, what=seen.what, step=seen.step)

    @property
    def remarks(self) -> list[str]:
        """The remarks that a report shows below the failure."""
        unshrunk = self.program.meta.get(UNSHRUNK)
        return list_remarks(self.programs, self.flaky, self.answers, unshrunk)

    @property
    def notes(self) -> list[str]:
        """The lines about the failure as a whole."""
        lines = [*self.played.notes]
        if self.played.status == "agrees":
            ran = self.played.backend
            now = " now" if ran == self.backend else ""
            file = "its file" if now else f"the file of {self.name}"
            says = f"{file} says: {self.message or 'nothing'}"
            lines.append(f"{ran} agrees{now} in every step; {says}")
        return lines + self.remarks

    @property
    def unreached(self) -> str:
        """The number of steps that did not run, as a text; "" if all steps ran."""
        steps = self.played.steps
        extra = self.operations - steps[-1].number - 1 if steps else 0
        if not extra:
            return ""
        return f"{extra} more step{' was' if extra == 1 else 's were'} not reached"

    def describe_gap(self, index: int) -> str:
        """Returns which steps before the shown step `index` are left out, or ""."""
        steps = self.played.steps
        first = steps[index - 1].number + 1 if index else 0
        last = steps[index].number - 1
        if first >= last:
            return f"step {last} is left out" if first == last else ""
        return f"steps {first} to {last} are left out"

    @property
    def kind_of_difference(self) -> str:
        return self.what or "program"

    @property
    def sentence(self) -> str:
        """A sentence that describes the difference."""
        message = self.message or "its file does not say how it failed"
        return clean(message, MOST_SENTENCE)

    def describe(self, most: int) -> list[str]:
        """Describes the failure in lines, with at most `most` steps."""
        about = self.step, self.kind_of_difference, self.sentence
        return [*describe_failure(self.program, *about, most)]

    @property
    def line(self) -> str:
        """A description of the failure in a single line."""
        line = describe_line(self.program, self.step, self.sentence)
        return clean(line, MOST_SENTENCE)

    @property
    def evidence(self) -> Evidence:
        """The evidence for the cause of the failure."""
        message = self.sentence if self.message else self.path
        about = self.step, self.kind_of_difference, message
        return gather_evidence(self.program, *about)

    @property
    def name(self) -> str:
        """The backend that failed."""
        return self.backend or self.played.backend or "no backend"

    @property
    def replay(self) -> str:
        """The command that replays the failure."""
        backend = self.played.backend or self.backend or "NAME"
        beside = read_beside(self.program.meta)
        return get_replay_line(Path(self.path), self.options, backend, *beside)

    @property
    def title(self) -> str:
        """The signature of the failure, even if the file has no signature."""
        program = self.program
        step = -1 if self.step is None else self.step
        operation = program.ops[step]["op"] if program.ops else "open"
        names = program.contract, program.kind, operation, self.kind_of_difference
        return self.signature or "-".join(names)

    @property
    def config(self) -> str:
        return clean(describe_config(self.program))

    @property
    def operations(self) -> int:
        return len(self.program.ops)

    @property
    def program_text(self) -> str | None:
        """The program as JSON, with a line for each operation; None if it is too long."""
        document = replace(self.program, meta={}).to_json()
        ops = ",\n  ".join(json.dumps(op) for op in document.pop("ops"))
        text = f'{json.dumps(document)[:-1]},\n "ops": [\n  {ops}]}}'
        return text if len(text) <= MOST_PROGRAM else None


# --- a failure from its file ------------------------------------------------------------


def read_saved(program: Program, path: str) -> FailureView:
    """Reads the valid fields of a program's `meta`."""
    meta = program.meta
    signature, versions = get_text(meta, "signature"), meta.get("versions")
    named = versions.items() if isinstance(versions, Mapping) else ()
    return FailureView(
        program,
        path,
        get_text(meta, "backend"),
        signature,
        signature.rpartition("-")[2] if signature else None,
        check_step(meta.get("step"), program),
        get_text(meta, "what"),
        {name: value for name, value in named if isinstance(value, str)},
        flaky=read_flaky(meta),
        options=read_options(meta),
    )


def read_options(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the valid options of the check that found a failure."""
    return {
        name: meta[name]
        for name, types in OPTIONS.items()
        if is_option(meta.get(name), types)
    }


def is_option(value: Any, types: Sequence[type]) -> bool:
    if type(value) not in types:
        return False
    if isinstance(value, str):
        return value.isprintable()
    return bool(0 < value <= MOST_SECONDS)


def check_step(step: Any, program: Program) -> int | None:
    """Returns the number of a step, or None if the program has no such step."""
    return step if isinstance(step, int) and 0 <= step < len(program.ops) else None


def get_text(meta: Mapping[str, Any], name: str) -> str | None:
    value = meta.get(name)
    return value if isinstance(value, str) and value else None


# --- a report ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportView:
    """The content of a report.

    Attributes:
        outcomes: the outcomes of checks.
        failures: the listed failures.
        broken: the reasons why files could not be read.
        more: the number of failures that are not listed.
    """

    outcomes: Sequence[OutcomeSummary]
    failures: Sequence[FailureView]
    broken: Sequence[str]
    more: int = 0

    @cached_property
    def groups(self) -> list[Group[FailureView]]:
        """The failures, grouped by the probable cause."""
        failures = self.failures
        return group_failures(
            failures,
            [failure.evidence for failure in failures],
            [failure.name for failure in failures],
            [failure.cause for failure in failures],
        )

    @property
    def pairs(self) -> list[PairSummary]:
        return [pair for outcome in self.outcomes for pair in outcome.pairs]

    @property
    def notes(self) -> list[str]:
        """The notes below the matrix, without duplicates."""
        notes = (note for outcome in self.outcomes for note in list_notes(outcome))
        return list(dict.fromkeys(note.format() for note in notes))

    @property
    def missed(self) -> int:
        """The number of cells that were never reached."""
        return sum_field(self.pairs, "missed")

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return format_verdict(self.outcomes, len(self.failures) + self.more)

    @property
    def summary(self) -> str:
        """A description of the amount of work that was done."""
        if not self.pairs:
            return "no outcome of a check: programs from files"
        return format_amount(self.outcomes)
