"""The material of a report: outcomes and programs that failed, which run once more."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from lockstep.harness.backends.backend import REFERENCE_NAME, compare_environments
from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.jobs.replay import HINT, find_backend
from lockstep.harness.programs.files import (
    is_several,
    iterate_saved,
    list_files,
    list_outcomes,
)
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_program,
    read_flaky,
)
from lockstep.harness.reports.model import OutcomeSummary
from lockstep.harness.reports.outcome_file import is_outcome, read_outcome
from lockstep.harness.reports.pages.view import (
    Material,
    Played,
    Saved,
    check_step,
    read_options,
    read_saved,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

# --- gathered ---------------------------------------------------------------------------


def gather(paths: Sequence[Path]) -> Material:
    """Gathers from files, and from the files of folders. Raises UsageError if that is
    nothing."""
    material = Material()
    for path in paths:
        gather_from(path, material)
    if not material.outcomes and not material.saved:
        if len(material.broken) == 1:
            raise UsageError(material.broken[0])
        listed = ", ".join(map(str, paths))
        more = f"; {len(material.broken)} files cannot be read" if material.broken else ""
        raise UsageError(f"{listed}: nothing to report{more}")
    return material


def gather_from(path: Path, material: Material) -> None:
    if not is_several(path):
        document = read_document(path)
        if is_outcome(document):
            add_outcome(document, str(path), material)
        else:
            add_programs(path, material)
        return
    outcomes, mended = list_outcomes(path), set[PurePath]()
    for file, read in outcomes:
        try:
            document = parse_json(decode(read(), str(file)), str(file))
            add_outcome(document, str(file), material)
            mended |= list_mended(file, material.outcomes[-1])
        except UsageError as error:
            material.broken.append(str(error))
    try:
        add_programs(path, material, mended)
    except UsageError:
        if not outcomes:
            raise


def read_document(path: Path) -> Any:
    """The JSON in a file that may be an outcome; None for what holds programs only."""
    if path.suffix != ".json":
        return None
    ((file, read),) = list_files(path)
    return parse_json(decode(read(), str(file)), str(file))


def add_outcome(document: Any, where: str, material: Material) -> None:
    outcome = read_outcome(document, where)
    material.outcomes.append(outcome)
    for pair in document["pairs"]:
        for failure in pair["failures"]:
            try:
                program = parse_program(failure["program"], where)
            except UsageError as error:
                material.broken.append(str(error))
                continue
            divergence = failure["divergence"]
            material.add(
                Saved(
                    program,
                    failure["path"],
                    pair["backend"],
                    failure["signature"],
                    divergence["what"],
                    check_step(divergence["step"], program),
                    divergence["message"],
                    outcome.versions,
                    (where, failure["cause"]) if failure.get("cause") else None,
                    read_flaky(failure),
                    pair.get("signatures", {}).get(failure["signature"]),
                    read_options(failure.get("options", {})),
                    failure.get("answers", {}),
                )
            )


def list_mended(file: Path, outcome: OutcomeSummary) -> set[PurePath]:
    """The files beside that of an outcome whose programs agree, as it says."""
    agreeing = map(PurePath, outcome.saved.agreeing)
    return {file.parent / one.parent.name / one.name for one in agreeing}


def add_programs(
    path: Path, material: Material, mended: Container[PurePath] = ()
) -> None:
    """Adds the programs of a path. mended: files in it that are passed over."""
    for file, program in iterate_saved([path]):
        if isinstance(program, UsageError):
            material.broken.append(str(program))
        elif file not in mended:
            material.add(read_saved(program, str(file)))


# --- played again, in a worker, for what both sides answer ------------------------------


MOST_SNIPPET = 20_000
"""Letters of a snippet that is shown."""


class Stage:
    """Runs programs again.

    settings: which backends the user named; see `find_backend`.
    """

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self.pool, self.settings = pool, settings

    def play(self, saved: Saved, bounds: Bounds) -> Played:
        """Both sides of the program, or the reference alone."""
        backend = find_backend(saved.backend, self.settings)
        if backend is None:
            named = f"{clean(saved.backend)} is" if saved.backend else "it names"
            why = f"{named} no registered backend; {HINT}"
            return self.play_reference(
                saved, [f"Only the reference is shown: {why}."], bounds
            )
        event = self.record(backend, saved.program, None, bounds, saved.signature)
        if isinstance(event, messages.Recorded):
            played = read_played(event, backend, saved)
            return replace(played, snippet=self.write_snippet(saved.program, played))
        blamed = event.blame()
        if blamed is not None:
            return self.play_crash(*blamed, backend, bounds)
        words = f"Only the reference is shown: {backend} cannot run here: {event.why}"
        return self.play_reference(saved, [clean(words)], bounds)

    def write_snippet(self, program: Program, played: Played) -> str | None:
        """The failure that was seen as a script; None if there is none."""
        divergence = played.divergence
        if divergence is None or played.backend is None:
            return None
        meta = {"signature": divergence.get_signature(program), "step": divergence.step}
        seen = replace(program, meta=meta).to_json()
        event = self.pool.call(messages.WriteSnippet(str(played.backend), seen))
        if isinstance(event, messages.Stopped) or len(event.text) > MOST_SNIPPET:
            return None
        return event.text

    def play_reference(
        self, saved: Saved, notes: Sequence[str], bounds: Bounds
    ) -> Played:
        """Its side, as far as the file says that the program went."""
        program = saved.program
        if saved.step is not None:
            program = replace(program, ops=program.ops[: saved.step + 1])
        event = self.record(REFERENCE_NAME, program, 0, bounds)
        if isinstance(event, messages.Stopped):
            more = f"The reference did not come to an end: {clean(event.why)}"
            return Played("recorded", (), [*notes, more])
        return Played("recorded", event.steps, notes)

    def play_crash(
        self, program: Program, divergence: Divergence, backend: str, bounds: Bounds
    ) -> Played:
        """Both sides up to the step at which the backend ended or stood still."""
        again = self.record(backend, program, divergence.step, bounds)
        if isinstance(again, messages.Stopped):
            again = self.record(REFERENCE_NAME, program, 0, bounds)
        steps = again.steps if isinstance(again, messages.Recorded) else []
        return Played(divergence.what, steps, (), divergence, (), backend)

    def record(
        self,
        backend: str,
        program: Program,
        until: int | None,
        bounds: Bounds,
        wanted: str | None = None,
    ) -> messages.Recorded | messages.Stopped:
        task = messages.RecordProgram(backend, program.to_json(), bounds, until, wanted)
        return self.pool.call(task)


def read_played(event: messages.Recorded, backend: str, saved: Saved) -> Played:
    if event.divergence is None:
        here = event.get_environment()
        differs = compare_environments(saved.program.meta, backend, here)
        notes = [differs] if differs else []
        return Played("agrees", event.steps, notes, backend=backend)
    told = event.divergence, event.stories
    return Played("diverges", event.steps, (), *told, backend)
