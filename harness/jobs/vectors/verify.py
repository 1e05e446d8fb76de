"""Replays the programs of a set of vectors on backends, as far as they declare them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from lockstep.harness.jobs.crash import MAX_CRASHES
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.replay import AGREEING, Replayed, make_replayed
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.vectors.files import read_lines
from lockstep.harness.workers.messages import Ran, RunProgram, Stopped


@dataclass
class Verified:
    """The results of a set on one backend.

    Attributes:
        not_run: reason → number of programs that were not run.
        wrong: programs that diverge or could not run.
    """

    backend: str
    agreed: int = 0
    not_run: Counter[str] = field(default_factory=Counter)
    wrong: list[Replayed] = field(default_factory=list)

    def get_exit_status(self) -> int:
        statuses = {result.status for result in self.wrong}
        return 1 if "FAILED" in statuses else 0 if self.agreed and not statuses else 2


def replay_set(files: Iterable[Path], settings: Settings) -> Iterator[Verified]:
    """Yields the results on each backend of the settings. A backend that cannot run, or
    that crashes twice, is skipped."""
    with open_pool(settings, 1) as pool:
        for backend in settings.backends:
            verified, crashes = Verified(backend), 0
            programs = chain.from_iterable(map(read_lines, files))
            for location, program, _ in programs:
                event = pool.call(RunProgram(backend, program.to_json(), adapts=True))
                if isinstance(event, Ran) and event.why_skipped and not event.steps:
                    verified.not_run[event.why_skipped] += 1
                    continue
                result = make_replayed(Path(location), program, backend, event)
                if result.status in AGREEING:
                    verified.agreed += 1
                    continue
                verified.wrong.append(result)
                if isinstance(event, Stopped):
                    crashes += 1 if event.blame() else MAX_CRASHES
                if crashes >= MAX_CRASHES:
                    break
            yield verified
