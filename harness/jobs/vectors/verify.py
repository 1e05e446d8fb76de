"""The job of `lockstep vectors verify`: a set that others may have made, checked here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.harness.jobs.check import CRASHES, Campaign, Watch, make_task
from lockstep.harness.jobs.outcome import Pair, Settings
from lockstep.harness.jobs.vectors.export import run_tasks
from lockstep.harness.programs.vectors.audit import Problem
from lockstep.harness.programs.vectors.manifest import check_files, read_manifest
from lockstep.harness.workers.pool import Event, Task

# Programs that a worker gets at a time.
BATCH = 25

FRONT = "vectors"


@dataclass
class Audit:
    """What a set holds. programs: of each (contract, kind), as JSON. problems: what is
    wrong with it."""

    folder: Path
    files: int = 0
    done: int = 0
    programs: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def count(self) -> int:
        return sum(map(len, self.programs.values()))

    def get_exit_status(self) -> int:
        """0 as the reference expects, 1 it expects something else, 2 no proper set."""
        if not self.problems:
            return 0
        return 1 if all(problem.differs for problem in self.problems) else 2


def audit_set(folder: Path, jobs: int, watch: Callable[[Audit], None]) -> Audit:
    """Checks all files of a set: that they are whole, and what they say. Raises
    UsageError for what is no set."""
    files = read_manifest(folder)
    check_files(folder, files)
    work = Audit(folder)
    tasks = [
        {
            "do": "audit",
            "path": str((folder / name).absolute()),
            "holds": dict(file.holds),
        }
        for name, file in sorted(files.items())
        if file.holds is not None
    ]
    work.files = len(tasks)
    run_tasks(tasks, jobs, partial(handle, work), lambda: watch(work))
    return work


def handle(work: Audit, task: Task, event: Event) -> None:
    work.done += 1
    if event["event"] != "done":
        # A program that takes the reference too long stops here, too.
        work.problems.append(Problem(f"{task['path']}: {event['why']}"))
        return
    own = task["holds"]["contract"], task["holds"]["kind"]
    work.programs.setdefault(own, []).extend(event["programs"])
    work.problems += [Problem(**problem) for problem in event["problems"]]


class Verification(Campaign):
    """The programs of a set on each chosen backend, as far as it declares them."""

    def __init__(
        self,
        settings: Settings,
        programs: Mapping[tuple[str, str], Sequence[Any]],
        watch: Watch = lambda _: None,
    ) -> None:
        super().__init__(settings, (), watch)
        self.programs = programs
        self.batches = 0

    def plan(self) -> None:
        """The programs of all pairs in turn, some at a time."""
        pairs = self.outcome.pairs
        pairs[:] = [pair for pair in pairs if (pair.contract, pair.kind) in self.programs]
        for pair in pairs:
            pair.wanted = len(self.programs[pair.contract, pair.kind])
        most = max((pair.wanted for pair in pairs), default=0)
        for begin in range(0, most, BATCH):
            for pair in pairs:
                programs = self.programs[pair.contract, pair.kind]
                self.add_batch(pair, programs[begin : begin + BATCH])

    def add_batch(self, pair: Pair, programs: Sequence[Any]) -> None:
        if programs:
            own = pair.backend, pair.contract, pair.kind, self.batches, 0
            task = make_task(self.settings, *own)
            self.tasks.append({**task, "do": "batch", "programs": list(programs)})
            self.batches += 1

    def handle_shard(self, task: Task, event: Event) -> None:
        """After a crash, the programs behind the one that was running get another
        process."""
        pair = self.find_pair(task)
        place = pair.running.get(task["shard"], {}).get("place", 0)
        super().handle_shard(task, event)
        has_ended = event["event"] in ("crash", "hang") and event["running"]
        if has_ended and pair.crashes < CRASHES:
            self.add_batch(pair, task["programs"][place + 1 :])
