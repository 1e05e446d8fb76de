"""Runs the job of `lockstep faults`: measures which planted faults are found and when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from statistics import median
from typing import Any, cast

from lockstep.harness.backends.backend import Planted
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.interrupts import get_interrupt_status
from lockstep.harness.jobs.failures import describe_stop
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

SLICE = 50
"""The number of programs in a slice."""

FAR, MORE = 2, 4
"""A fault may have several symptoms, and the first one found may need many operations. If
the program found has over FAR operations more than the shortest known program, up to MORE
further slices run, as in a check, and may find a shorter program."""


@dataclass
class Search:
    """The search for one fault.

    Attributes:
        programs: the number of programs until the fault was found, or of all programs.
        seconds: the run time of these programs on one core.
        operations: the number of operations of the shortest program that shows the fault.
        signature: the signature of this program.
        more: the number of slices that ran after the slice that found the fault.
    """

    backend: str
    planted: Planted
    programs: int = 0
    seconds: float = 0.0
    operations: int | None = None
    signature: str | None = None
    error: str | None = None
    more: int = 0
    is_over: bool = False

    @property
    def is_found(self) -> bool:
        return self.operations is not None

    @property
    def excess(self) -> int | None:
        """The number of operations beyond the shortest known program."""
        if self.operations is None:
            return None
        return self.operations - self.planted.shortest

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["is_over"]
        return {**fields, "found": self.is_found, "excess": self.excess}


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
            "front": self.settings.generator,
            "most_programs": self.settings.programs,
            "seconds": round(self.seconds, 2),
            "complete": not self.interrupted,
            "exit_status": self.get_exit_status(),
            "unavailable": self.unavailable,
            "dead": self.dead,
            "summary": summarize_searches(self),
            "faults": [search.to_json() for search in self.all],
        }


def summarize_searches(searches: Searches) -> dict[str, Any]:
    found = searches.found
    counts = {"faults": len(searches.all), "found": len(found)}
    if not found:
        return counts
    programs = [search.programs for search in found]
    seconds = [search.seconds for search in found]
    excess = [search.excess or 0 for search in found]
    return {
        **counts,
        "median_programs": median(programs),
        "most_programs": max(programs),
        "median_seconds": round(median(seconds), 2),
        "most_seconds": round(max(seconds), 2),
        "median_excess": median(excess),
        "most_excess": max(excess),
    }


class Hunt:
    """Looks for the faults of the chosen backends on all workers in parallel.

    Args:
        settings: of the command.
        names: the registered backends, if the settings name none.
        ids: the faults to look for; empty for all.
        watch: called with the searches whenever they may have changed.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        ids: Sequence[str] = (),
        watch: Callable[[Searches], None] = lambda _: None,
    ) -> None:
        self.settings, self.ids, self.watch = settings, ids, watch
        self.names = list(settings.backends or names)
        self.searches = Searches(settings)
        self.tasks: deque[messages.Task[messages.SliceDone]] = deque()

    def run(self) -> Searches:
        """Runs until every fault is found or given up, or until Ctrl-C."""
        searches = self.searches
        try:
            with open_pool(self.settings) as pool:
                self.list_faults(pool)
                for search in searches.all:
                    self.add_task(search, 0)
                for task, event in pool.run(self.tasks, lambda: self.watch(searches)):
                    self.handle(cast(messages.RandomTask, task), event)
        except KeyboardInterrupt as interrupt:
            searches.interrupted = get_interrupt_status(interrupt)
        searches.seconds = time.monotonic() - searches.started
        return searches

    def list_faults(self, pool: Pool) -> None:
        """Requests the list of planted faults from each backend."""
        ids: list[str] = []
        events: dict[str, messages.Event] = {}
        for task, event in pool.run(deque(map(messages.ListFaults, self.names))):
            events[task.backend] = event
        for name in self.names:
            event = events[name]
            if isinstance(event, messages.Refused):
                self.searches.unavailable[name] = event.why
                continue
            if isinstance(event, messages.Stopped):
                self.searches.dead[name] = event.describe()
                continue
            assert isinstance(event, messages.FaultsListed)
            ids += [fault.id for fault in event.faults]
            chosen = [
                fault for fault in event.faults if not self.ids or fault.id in self.ids
            ]
            self.searches.all += [Search(name, fault) for fault in chosen]
        for missing in set(self.ids) - set(ids) if not self.searches.dead else ():
            matches = get_close_matches(missing, ids) or sorted(set(ids))
            raise UsageError(f"there is no fault {missing}; known: {', '.join(matches)}")

    def add_task(self, search: Search, number: int) -> None:
        """Adds the task with the next programs for a fault."""
        planted, settings = search.planted, self.settings
        task = messages.RandomTask(
            *(planted.backend, planted.contract, planted.kind, number),
            seed=settings.seed,
            programs=min(SLICE, settings.programs - number * SLICE),
            enough=planted.shortest + FAR,
        )
        self.tasks.append(task)

    def handle(self, task: messages.RandomTask, event: messages.Event) -> None:
        searches = self.searches.all
        search = next(item for item in searches if item.planted.backend == task.backend)
        if isinstance(event, messages.Found):
            self.keep(search, task, event)
        elif isinstance(event, messages.SliceDone):
            self.finish_slice(search, task, event)
        elif isinstance(event, messages.Stopped):
            # A mistake that was found may also end or hang the worker that shrinks it.
            search.is_over = True
            if not search.is_found:
                failures = self.settings.failures
                search.error = describe_stop(failures, event, search.planted.backend)

    def keep(
        self, search: Search, task: messages.RandomTask, event: messages.Found
    ) -> None:
        """Once as it was found, once shrunk, for each signature."""
        if not search.is_found:
            search.programs = task.number * SLICE + event.programs
            search.seconds += event.seconds
        program = event.parsed
        operations = len(program.ops)
        if search.operations is None or operations < search.operations:
            search.operations = operations
            search.signature = event.divergence.get_signature(program)

    def finish_slice(
        self, search: Search, task: messages.RandomTask, event: messages.SliceDone
    ) -> None:
        is_last = (task.number + 1) * SLICE >= self.settings.programs
        if search.excess is None:
            search.programs = task.number * SLICE + event.counts.programs
            search.seconds += event.counts.seconds
            search.is_over = is_last
        else:
            search.is_over = is_last or search.excess <= FAR or search.more == MORE
            search.more += not search.is_over
        if not search.is_over:
            self.add_task(search, task.number + 1)


def list_survivors(searches: Searches) -> Iterator[Search]:
    """Yields the completed searches that did not find their fault."""
    for search in searches.all:
        if search.is_over and not search.is_found:
            yield search
