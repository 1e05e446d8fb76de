"""Programs that failed, once more: in a worker, for what both sides answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.backends.environment import compare_environments
from lockstep.harness.core.errors import clean
from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.reports.pages.view import Played, Saved
from lockstep.harness.workers.messages import (
    Recorded,
    RecordProgram,
    Stopped,
    WriteSnippet,
)
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import list_names

MOST_SNIPPET = 20_000
"""Letters of a snippet that is shown."""


class Stage:
    """Runs programs again.

    given: the backends that the user named. A file that names one of them, or a
    registered one, runs there, and others on the first that was given: what a file names
    is not imported for that.
    """

    def __init__(self, pool: Pool, given: Sequence[str] = ()) -> None:
        self.pool, self.given = pool, given
        self.registered = set(list_names())

    def choose_backend(self, saved: Saved) -> str | None:
        if saved.backend in self.given:
            return saved.backend
        if self.given:
            return self.given[0]
        return saved.backend if saved.backend in self.registered else None

    def play(self, saved: Saved, bounds: Bounds) -> Played:
        """Both sides of the program, or the reference alone."""
        backend = self.choose_backend(saved)
        if backend is None:
            named = f"{clean(saved.backend)} is" if saved.backend else "it names"
            why = f"{named} no registered backend; --backend gives one"
            return self.play_reference(
                saved, [f"Only the reference is shown: {why}."], bounds
            )
        event = self.record(backend, saved.program, None, bounds, saved.signature)
        if isinstance(event, Recorded):
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
        event = self.pool.call(WriteSnippet(str(played.backend), seen))
        if isinstance(event, Stopped) or len(event.text) > MOST_SNIPPET:
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
        if isinstance(event, Stopped):
            more = f"The reference did not come to an end: {clean(event.why)}"
            return Played("recorded", (), [*notes, more])
        return Played("recorded", event.steps, notes)

    def play_crash(
        self, program: Program, divergence: Divergence, backend: str, bounds: Bounds
    ) -> Played:
        """Both sides up to the step at which the backend ended or stood still."""
        again = self.record(backend, program, divergence.step, bounds)
        if isinstance(again, Stopped):
            again = self.record(REFERENCE_NAME, program, 0, bounds)
        steps = again.steps if isinstance(again, Recorded) else []
        return Played(divergence.what, steps, (), divergence, (), backend)

    def record(
        self,
        backend: str,
        program: Program,
        until: int | None,
        bounds: Bounds,
        wanted: str | None = None,
    ) -> Recorded | Stopped:
        task = RecordProgram(backend, program.to_json(), bounds, until, wanted)
        return self.pool.call(task)


def read_played(event: Recorded, backend: str, saved: Saved) -> Played:
    if event.divergence is None:
        here = event.get_environment()
        differs = compare_environments(saved.program.meta, backend, here)
        notes = [differs] if differs else []
        return Played("agrees", event.steps, notes, backend=backend)
    told = event.divergence, event.stories
    return Played("diverges", event.steps, (), *told, backend)
