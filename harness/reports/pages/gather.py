"""Gathers the outcomes and failures for a report, and runs failing programs again."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from os.path import isdir
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import REFERENCE_NAME, compare_environments
from lockstep.harness.core.document import parse_json
from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.jobs.replay import WHERE, find_backend, find_beside, why_alone
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import (
    iterate_saved,
    list_outcomes,
    read_file,
)
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_program,
    read_flaky,
)
from lockstep.harness.reports.outcome_file import (
    OutcomeSummary,
    is_outcome,
    read_outcome,
)
from lockstep.harness.reports.pages.view import (
    FailureView,
    Played,
    ReportView,
    check_step,
    read_options,
    read_saved,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

# --- gathered ---------------------------------------------------------------------------


@dataclass
class Material:
    """The gathered outcomes and failures.

    Attributes:
        broken: the reasons why files could not be read.
    """

    outcomes: list[OutcomeSummary] = field(default_factory=list)
    saved: list[FailureView] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, saved: FailureView) -> None:
        """Adds a failure, or merges it with an earlier record of the same failure."""
        for index, earlier in enumerate(self.saved):
            if earlier.key == saved.key:
                self.saved[index] = earlier.merge(saved)
                return
        self.saved.append(saved)


def gather(paths: Sequence[Path]) -> Material:
    """Gathers from files and folders. Raises UsageError if there is nothing to report."""
    material = Material()
    for path in paths:
        gather_from(path, material)
    if not material.outcomes and not material.saved:
        if len(material.broken) == 1:
            raise UsageError(material.broken[0])
        listed = ", ".join(map(str, paths))
        extra = (
            f"; {len(material.broken)} files cannot be read" if material.broken else ""
        )
        raise UsageError(f"{listed}: nothing to report{extra}")
    return material


def gather_from(path: Path, material: Material) -> None:
    if not isdir(path):
        document = read_document(path)
        if is_outcome(document):
            add_outcome(read_outcome(document, str(path)), material)
        else:
            add_programs(path, material)
        return
    outcomes, mended = list_outcomes(path), set[Path]()
    for file in outcomes:
        try:
            document = parse_json(read_file(file), str(file))
            add_outcome(read_outcome(document, str(file)), material)
        except UsageError as error:
            material.broken.append(str(error))
            continue
        saved = material.outcomes[-1].saved
        for mended_path in map(Path, (*saved.agreeing, *saved.excluded)):
            mended.add(file.parent / mended_path.parent.name / mended_path.name)
    try:
        add_programs(path, material, mended)
    except UsageError:
        if not outcomes:
            raise


def read_document(path: Path) -> Any:
    """Returns the JSON of a file that may be an outcome; None if it has programs."""
    if path.suffix != ".json":
        return None
    return parse_json(read_file(path), str(path))


def add_outcome(outcome: OutcomeSummary, material: Material) -> None:
    material.outcomes.append(outcome)
    for pair in outcome.pairs:
        for failure in pair.failures:
            try:
                program = parse_program(failure.program, outcome.path)
            except UsageError as error:
                material.broken.append(str(error))
                continue
            divergence = failure.divergence
            saved = FailureView(
                program,
                failure.path,
                pair.backend,
                failure.signature,
                divergence.what,
                check_step(divergence.step, program),
                divergence.message,
                outcome.versions,
                (outcome.path, failure.cause) if failure.cause else None,
                read_flaky({"flaky": failure.flaky}),
                pair.signatures.get(failure.signature),
                read_options(failure.options),
                failure.answers,
            )
            material.add(saved)


def add_programs(path: Path, material: Material, mended: Container[Path] = ()) -> None:
    """Adds the programs of a path, except for the files in `mended`."""
    for file, program in iterate_saved([path]):
        if isinstance(program, UsageError):
            material.broken.append(str(program))
        elif file not in mended:
            material.add(read_saved(program, str(file)))


# --- run again, in a worker, for the answers of both sides ------------------------------


MOST_SNIPPET = 20_000
"""The maximal length of a snippet that a report shows."""

MOST_PLAYED = 40
"""The maximal number of failures that a report shows step by step."""

MOST_LISTED = 400


class Stage:
    """Runs programs again.

    Args:
        pool: the pool of workers.
        settings: settings with the backends that may be imported; see `find_backend`.
        backend: the backend that runs all programs; None to run each on its own backend.
    """

    def __init__(
        self, pool: Pool, settings: Settings, backend: str | None = None
    ) -> None:
        self.pool, self.settings, self.backend = pool, settings, backend

    def play(self, saved: FailureView, bounds: Bounds) -> Played:
        """Runs a program on the backend and the reference; without a backend, on the
        reference alone."""
        backend = self.backend or find_backend(saved.backend, self.settings)
        program = saved.program
        if backend is None:
            reason = f"it names no registered backend; give one {WHERE}"
            if saved.backend:
                name = clean(saved.backend)
                reason = f"{name} is no registered backend; give it {WHERE}"
            return self.play_reference(saved, reason, bounds)
        beside = find_beside(program, backend, self.settings)
        limits: dict[str, Any] = {"wanted": saved.signature, "beside": beside}
        event = self.record(backend, program, bounds, **limits)
        if isinstance(event, messages.Stopped):
            blamed = event.blame()
            if blamed is None:
                reason = f"{backend} cannot run here: {clean(event.why)}"
                if isinstance(event, messages.Excluded):
                    reason = f"EXCLUDED: {clean(event.why)}"
                return self.play_reference(saved, reason, bounds)
            return self.play_crash(*blamed, backend, bounds)
        divergence = event.divergence
        if divergence is None:
            environment = event.get_environment()
            differs = compare_environments(program.meta, backend, environment)
            alone = why_alone(program, beside).removeprefix("; ")
            notes = [note for note in (differs, alone) if note]
            return Played("agrees", event.steps, notes, backend=backend)
        script = self.write_snippet(program, divergence, backend)
        about = divergence, event.stories, backend, script
        return Played("diverges", event.steps, (), *about)

    def write_snippet(
        self, program: Program, divergence: Divergence, backend: str
    ) -> str | None:
        """Returns a script that shows the failure; None if no script can show it."""
        if divergence.beside:
            return None
        meta = {"signature": divergence.get_signature(program), "step": divergence.step}
        document = replace(program, meta=meta).to_json()
        event = self.pool.call(messages.WriteSnippet(backend, document))
        if isinstance(event, messages.Stopped) or len(event.text) > MOST_SNIPPET:
            return None
        return event.text

    def play_reference(self, saved: FailureView, why: str, bounds: Bounds) -> Played:
        """Runs the reference, up to the step in which the program failed."""
        program, note = saved.program, f"Only the reference is shown: {why}."
        if saved.step is not None:
            program = replace(program, ops=program.ops[: saved.step + 1])
        event = self.record(REFERENCE_NAME, program, bounds, until=0)
        if isinstance(event, messages.Stopped):
            extra = f"The reference did not finish: {clean(event.why)}"
            return Played("recorded", (), [note, extra])
        return Played("recorded", event.steps, [note])

    def play_crash(
        self, program: Program, divergence: Divergence, backend: str, bounds: Bounds
    ) -> Played:
        """Runs backend and reference up to the step where the backend crashed or hung."""
        again = self.record(backend, program, bounds, until=divergence.step)
        if isinstance(again, messages.Stopped):
            again = self.record(REFERENCE_NAME, program, bounds, until=0)
        steps = again.steps if isinstance(again, messages.Recorded) else []
        return Played(divergence.what, steps, (), divergence, (), backend)

    def record(
        self, backend: str, program: Program, bounds: Bounds, **limits: Any
    ) -> messages.Recorded | messages.Stopped:
        """Runs a program and draws its steps. limits: see `messages.RecordProgram`."""
        return self.pool.call(
            messages.RecordProgram(backend, program.to_json(), bounds, **limits)
        )


def make_report(
    material: Material, stage: Stage | None, bounds: Bounds | None = None
) -> ReportView:
    """Makes a report. Without a stage, uses the files and runs no program."""
    listed = material.saved[:MOST_LISTED]
    failures = [
        make_failure(
            number, saved, stage if number <= MOST_PLAYED else None, bounds or Bounds()
        )
        for number, saved in enumerate(listed, 1)
    ]
    extra = len(material.saved) - len(listed)
    return ReportView(material.outcomes, failures, material.broken, extra)


def make_failure(
    number: int, saved: FailureView, stage: Stage | None, bounds: Bounds
) -> FailureView:
    """Numbers a failure, and runs it again if there is a stage."""
    view = replace(saved, number=number)
    return view.add_rerun(stage.play(saved, bounds)) if stage else view
