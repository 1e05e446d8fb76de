"""Runs the job of `lockstep faults`: measures which planted faults are found and when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

from lockstep.harness.backends.backend import Planted
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.interrupts import get_interrupt_status
from lockstep.harness.jobs.failures import describe_stop
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import GENERATOR, Settings
from lockstep.harness.programs.program import MAX_OPERATIONS
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

SLICE = 50
"""The number of programs in a slice."""


@dataclass
class Search:
    """The search for one fault.

    Attributes:
        programs: the number of programs until the fault was found, or of all programs.
        seconds: the run time of these programs on one core.
        operations: the number of operations of the shortest program that shows the fault.
        signature: the signature of this program.
    """

    backend: str
    planted: Planted
    programs: int = 0
    seconds: float = 0.0
    operations: int | None = None
    signature: str | None = None
    error: str | None = None
    is_over: bool = False

    @property
    def is_found(self) -> bool:
        return self.operations is not None

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["is_over"]
        return {**fields, "found": self.is_found}


@dataclass
class Searches:
    """All searches.

    Attributes:
        unavailable: backend → why it is unavailable.
        dead: backend → the error while loading it; the backend is broken.
        interrupted: the exit status of a search that Ctrl-C or a signal ended; else 0.
    """

    settings: Settings
    all: list[Search] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    interrupted: int = 0

    @property
    def found(self) -> list[Search]:
        return [search for search in self.all if search.is_found]

    def get_exit_status(self) -> int:
        """Returns the exit status: 0 if all faults are found, 1 if a fault survives, 2 if
        a backend or fault could not run, 130 after Ctrl-C."""
        if any(s.is_over and not s.is_found and not s.error for s in self.all):
            return 1
        if any(s.error for s in self.all) or self.dead:
            return 2
        if set(self.settings.backends) & set(self.unavailable):
            return 2
        return self.interrupted or (0 if self.all else 2)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "lockstep-faults/1",
            "seed": self.settings.seed,
            "front": GENERATOR,
            "most_programs": self.settings.programs,
            "seconds": round(self.seconds, 2),
            "complete": not self.interrupted,
            "exit_status": self.get_exit_status(),
            "unavailable": self.unavailable,
            "dead": self.dead,
            "summary": {"faults": len(self.all), "found": len(self.found)},
            "faults": [search.to_json() for search in self.all],
        }


def find_faults(
    settings: Settings,
    names: Sequence[str],
    ids: Sequence[str] = (),
    watch: Callable[[Searches], None] = lambda _: None,
) -> Searches:
    """Searches until every fault is found or given up, or until Ctrl-C.

    Args:
        settings: the settings of the command.
        names: the registered backends, if the settings name none.
        ids: the faults to look for; empty for all.
        watch: called with the searches whenever they may have changed.
    """
    searches = Searches(settings)
    try:
        with open_pool(settings) as pool:
            list_faults(pool, searches, settings.backends or names, ids)
            by_backend = {search.planted.backend: search for search in searches.all}
            tasks: deque[messages.Task[messages.SliceDone]]
            tasks = deque(make_task(search, 0, settings) for search in searches.all)
            for task, event in pool.run(tasks, lambda: watch(searches)):
                assert isinstance(task, messages.RandomTask)
                search = by_backend[task.backend]
                fold(settings, search, task, event)
                if isinstance(event, messages.SliceDone) and not search.is_over:
                    tasks.append(make_task(search, task.number + 1, settings))
    except KeyboardInterrupt as interrupt:
        searches.interrupted = get_interrupt_status(interrupt)
    searches.seconds = time.monotonic() - searches.started
    return searches


def list_faults(
    pool: Pool, searches: Searches, names: Sequence[str], ids: Sequence[str]
) -> None:
    """Adds a search for each chosen fault that is planted in a backend."""
    events: dict[str, messages.Event] = {}
    for task, event in pool.run(deque(map(messages.ListFaults, names))):
        events[task.backend] = event
    known: list[str] = []
    for name in names:
        event = events[name]
        if isinstance(event, messages.Refused):
            searches.unavailable[name] = event.why
        elif isinstance(event, messages.Stopped):
            searches.dead[name] = event.describe()
        elif isinstance(event, messages.FaultsListed):
            known += [fault.id for fault in event.faults]
            chosen = [fault for fault in event.faults if not ids or fault.id in ids]
            searches.all += [Search(name, fault) for fault in chosen]
    for missing in set(ids) - set(known) if not searches.dead else ():
        matches = get_close_matches(missing, known) or sorted(set(known))
        raise UsageError(f"there is no fault {missing}; known: {', '.join(matches)}")


def make_task(search: Search, number: int, settings: Settings) -> messages.RandomTask:
    """Makes a task that searches for a fault with the next programs."""
    planted = search.planted
    return messages.RandomTask(
        *(planted.backend, planted.contract, planted.kind, number),
        seed=settings.seed,
        programs=min(SLICE, settings.programs - number * SLICE),
        enough=MAX_OPERATIONS,
    )


def fold(
    settings: Settings, search: Search, task: messages.RandomTask, event: messages.Event
) -> None:
    """Adds an event to a search. A program is reported twice: as drawn, and shrunk."""
    previous = task.number * SLICE
    if isinstance(event, messages.Found):
        if not search.is_found:
            search.programs = previous + event.programs
            search.seconds += event.seconds
        operations = len(event.parsed.ops)
        if search.operations is None or operations <= search.operations:
            search.operations = operations
            search.signature = event.divergence.get_signature(event.parsed)
    elif isinstance(event, messages.SliceDone):
        search.is_over = search.is_found or previous + SLICE >= settings.programs
        if not search.is_found:
            search.programs = previous + event.counts.programs
            search.seconds += event.counts.seconds
    elif isinstance(event, messages.Stopped):
        # Shrinking a found fault may also crash or hang the worker.
        search.is_over = True
        if not search.is_found:
            search.error = describe_stop(settings.failures, event, task.backend)
