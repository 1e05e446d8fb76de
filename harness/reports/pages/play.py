"""Programs that failed, once more: in a worker, for what both sides answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from lockstep.harness.backends.environment import compare_surroundings, get_surroundings
from lockstep.harness.core.printable import clean
from lockstep.harness.execution.metamorphic.reference import NAME
from lockstep.harness.execution.recording.picture import Bounds, Step, read_step
from lockstep.harness.jobs.check import get_crash
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.pages.gather import Saved
from lockstep.harness.workers.pool import Event, Pool
from lockstep.harness.workers.registry import list_names

MOST_SNIPPET = 20_000
"""Letters of a snippet that is shown."""


@dataclass(frozen=True)
class Played:
    """What was seen.

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


class Stage:
    """Where programs run.

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
        if event["event"] == "done":
            played = read_played(event, backend, saved)
            return replace(played, snippet=self.write_snippet(saved.program, played))
        if event["event"] in ("crash", "hang") and event["running"]:
            return self.play_crash(event, backend, bounds)
        words = f"Only the reference is shown: {backend} cannot run here: {event['why']}"
        return self.play_reference(saved, [clean(words)], bounds)

    def write_snippet(self, program: Program, played: Played) -> str | None:
        """The failure that was seen as a script; None if there is none."""
        divergence = played.divergence
        if divergence is None or played.backend is None:
            return None
        meta = {
            "signature": divergence.get_signature(program),
            "step": divergence.step,
        }
        seen = replace(program, meta=meta).to_json()
        event = self.pool.call(
            {"do": "snippet", "backend": played.backend, "program": seen}
        )
        text = event.get("snippet")
        is_short = isinstance(text, str) and len(text) <= MOST_SNIPPET
        return text if is_short else None

    def play_reference(
        self, saved: Saved, notes: Sequence[str], bounds: Bounds
    ) -> Played:
        """Its side, as far as the file says that the program went."""
        program = saved.program
        if saved.step is not None:
            program = replace(program, ops=program.ops[: saved.step + 1])
        event = self.record(NAME, program, 0, bounds)
        if event["event"] != "done":
            more = f"The reference did not come to an end: {clean(event['why'])}"
            return Played("recorded", (), [*notes, more])
        return Played("recorded", read_steps(event), notes)

    def play_crash(self, event: Event, backend: str, bounds: Bounds) -> Played:
        """Both sides up to the step at which the backend ended or stood still."""
        program, divergence = get_crash(event)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        again = self.record(backend, program, divergence.step, bounds)
        if again["event"] != "done":
            again = self.record(NAME, program, 0, bounds)
        steps = read_steps(again) if again["event"] == "done" else []
        return Played(event["event"], steps, (), divergence, (), backend)

    def record(
        self,
        backend: str,
        program: Program,
        until: int | None,
        bounds: Bounds,
        wanted: str | None = None,
    ) -> Event:
        return self.pool.call(
            {
                "do": "record",
                "backend": backend,
                "program": program.to_json(),
                "until": until,
                "wanted": wanted,
                "bounds": asdict(bounds),
            }
        )


def read_steps(event: Event) -> list[Step]:
    return [read_step(step) for step in event["steps"]]


def read_played(event: Event, backend: str, saved: Saved) -> Played:
    if event["divergence"] is None:
        here = get_surroundings(event)
        differs = compare_surroundings(saved.program.meta, backend, here)
        notes = [differs] if differs else []
        return Played("agrees", read_steps(event), notes, backend=backend)
    divergence = Divergence.from_json(event["divergence"])
    return Played(
        "diverges", read_steps(event), (), divergence, event["stories"], backend
    )
