"""The planted faults: whether the harness finds each, how soon, and how small."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from statistics import median
from typing import Any

from lockstep.harness.backends.backend import Planted
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import make_task
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import parse_program
from lockstep.harness.workers.pool import Event, Pool, Task

SHARD = 50
"""Programs that are run before it is seen whether they were enough."""

FAR, MORE = 2, 4
"""A mistake that shows in several ways may be found first in one that takes many
operations. If it is further than FAR from the shortest program known, so many shards more
may find another, as they would in a check."""


@dataclass
class Search:
    """What came of looking for one fault.

    programs: until the first that shows it, or all that were run. seconds: the same, of
    one core. operations: of the shortest program that came of it. signature: of that.
    more: shards that were run after the first that found it.
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
        """Operations over the shortest program known."""
        if self.operations is None:
            return None
        return self.operations - self.planted.shortest

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["is_over"]
        return {**fields, "found": self.is_found, "excess": self.excess}


@dataclass
class Searches:
    """All of them. unavailable: backend → why its faults could not be listed."""

    settings: Settings
    all: list[Search] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    is_interrupted: bool = False

    @property
    def found(self) -> list[Search]:
        return [search for search in self.all if search.is_found]

    def get_exit_status(self) -> int:
        """0 all found, 1 one survives, 2 something could not run, 130 Ctrl-C."""
        if any(s.is_over and not s.is_found and not s.error for s in self.all):
            return 1
        if any(s.error for s in self.all) or not self.all:
            return 2
        asked = set(self.settings.backends) & set(self.unavailable)
        if asked:
            return 2
        return 130 if self.is_interrupted else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "lockstep-faults/1",
            "seed": self.settings.seed,
            "front": self.settings.front,
            "most_programs": self.settings.programs,
            "seconds": round(self.seconds, 2),
            "complete": not self.is_interrupted,
            "exit_status": self.get_exit_status(),
            "unavailable": self.unavailable,
            "summary": summarize(self),
            "faults": [search.to_json() for search in self.all],
        }


def summarize(searches: Searches) -> dict[str, Any]:
    found = searches.found
    if not found:
        return {"faults": len(searches.all), "found": 0}
    return {
        "faults": len(searches.all),
        "found": len(found),
        "median_programs": median(search.programs for search in found),
        "most_programs": max(search.programs for search in found),
        "median_seconds": round(median(search.seconds for search in found), 2),
        "most_seconds": round(max(search.seconds for search in found), 2),
        "median_excess": median(search.excess or 0 for search in found),
        "most_excess": max(search.excess or 0 for search in found),
    }


Watch = Callable[[Searches], None]


class Hunt:
    """Looks for all faults of the chosen backends at once, on all workers.

    ids: the faults to look for; empty for all. watch: is called now and then.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        ids: Sequence[str] = (),
        watch: Watch = lambda _: None,
    ) -> None:
        self.settings, self.ids, self.watch = settings, ids, watch
        self.names = list(settings.backends or names)
        self.searches = Searches(settings)
        self.tasks: deque[Task] = deque()

    def run(self) -> Searches:
        """Until all are found or given up, or Ctrl-C."""
        settings, searches = self.settings, self.searches
        folder = settings.failures / RUNNING
        try:
            with Pool(settings.jobs, folder, settings.step_seconds) as pool:
                self.list_faults(pool)
                self.tasks.extend(self.make_task(search, 0) for search in searches.all)
                for task, event in pool.run(self.tasks):
                    if task:
                        self.handle(task, event)
                    self.watch(searches)
        except KeyboardInterrupt:
            searches.is_interrupted = True
        searches.seconds = time.monotonic() - searches.started
        return searches

    def list_faults(self, pool: Pool) -> None:
        """Asks each backend what is planted in it."""
        known: list[str] = []
        for name in self.names:
            event = pool.call({"do": "faults", "backend": name})
            if event["event"] != "done":
                self.searches.unavailable[name] = str(event["why"])
                continue
            planted = [Planted(**fields) for fields in event["faults"]]
            known += [fault.id for fault in planted]
            chosen = [one for one in planted if not self.ids or one.id in self.ids]
            self.searches.all += [Search(name, fault) for fault in chosen]
        for missing in set(self.ids) - set(known):
            near = get_close_matches(missing, known) or sorted(set(known))
            raise UsageError(f"there is no fault {missing}; known: {', '.join(near)}")

    def make_task(self, search: Search, shard: int) -> Task:
        """The next programs for one fault."""
        planted, settings = search.planted, self.settings
        own = planted.backend, planted.contract, planted.kind
        programs = min(SHARD, settings.programs - shard * SHARD)
        return make_task(settings, *own, shard, programs)

    def handle(self, task: Task, event: Event) -> None:
        search = self.find(task)
        kind = event["event"]
        if kind == "found":
            self.keep(search, task, event)
        elif kind == "done":
            self.finish_shard(search, task, event)
        elif kind != "progress":
            # A mistake that was found may also end or hang the worker that shrinks it.
            search.is_over = True
            if not search.is_found:
                search.error = str(event.get("why", kind))

    def find(self, task: Task) -> Search:
        return next(
            search
            for search in self.searches.all
            if search.planted.backend == task["backend"]
        )

    def keep(self, search: Search, task: Task, event: Event) -> None:
        """Once as it was found, once shrunk, for each signature."""
        if not search.is_found:
            search.programs = task["shard"] * SHARD + event["found"]["programs"]
            search.seconds += event["found"]["seconds"]
        program = parse_program(event["program"], "a failing program")
        operations = len(program.ops)
        if search.operations is None or operations < search.operations:
            search.operations = operations
            divergence = Divergence.from_json(event["divergence"])
            search.signature = divergence.get_signature(program)

    def finish_shard(self, search: Search, task: Task, event: Event) -> None:
        if search.excess is not None:
            is_near = search.excess <= FAR or search.more == MORE
            search.is_over = (
                is_near or (task["shard"] + 1) * SHARD >= self.settings.programs
            )
            if not search.is_over:
                search.more += 1
                self.tasks.append(self.make_task(search, task["shard"] + 1))
            return
        search.programs = task["shard"] * SHARD + event["programs"]
        search.seconds += event["seconds"]
        if search.programs < self.settings.programs:
            self.tasks.append(self.make_task(search, task["shard"] + 1))
        else:
            search.is_over = True


def list_survivors(searches: Searches) -> Iterator[Search]:
    """Those that were looked for to the end, and not found."""
    for search in searches.all:
        if search.is_over and not search.is_found:
            yield search
