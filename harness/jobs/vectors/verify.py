"""The job of `lockstep vectors verify`: checks a set that others may have made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.jobs.check import MAX_CRASHES, Campaign, run_tasks
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings
from lockstep.harness.programs.vectors import Problem
from lockstep.harness.programs.vectors.manifest import check_files, read_manifest
from lockstep.harness.workers import messages

SLICE = 25
"""Programs that a worker gets at a time."""

GENERATOR = "vectors"


@dataclass
class Audit:
    """The content of a set: programs of each (contract, kind) as JSON, and problems."""

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
    """Checks all files of a set: that they are whole, and what they say.

    Raises:
        UsageError: it is not a set.
    """
    files = read_manifest(folder)
    check_files(folder, files)
    tasks = [
        messages.AuditFile(
            REFERENCE_NAME, str((folder / name).absolute()), dict(file.holds)
        )
        for name, file in sorted(files.items())
        if file.holds is not None
    ]
    work = Audit(folder, len(tasks))
    run_tasks(tasks, jobs, partial(keep_audited, work), lambda: watch(work))
    return work


def keep_audited(work: Audit, task: messages.AuditFile, event: messages.Event) -> None:
    work.done += 1
    if isinstance(event, messages.Stopped):
        # A program that takes the reference too long stops here, too.
        work.problems.append(Problem(f"{task.path}: {event.why}"))
    elif isinstance(event, messages.Audited):
        own = task.holds["contract"], task.holds["kind"]
        work.programs.setdefault(own, []).extend(event.programs)
        work.problems += event.problems


class Verification(Campaign):
    """The programs of a set on each chosen backend, as far as it declares them."""

    def __init__(
        self,
        settings: Settings,
        programs: Mapping[tuple[str, str], Sequence[Any]],
        watch: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        super().__init__(settings, (), watch)
        self.programs = programs
        self.slices = 0

    def plan(self) -> None:
        """The programs of all pairs in turn, some at a time."""
        pairs = self.outcome.pairs
        pairs[:] = [pair for pair in pairs if (pair.contract, pair.kind) in self.programs]
        for pair in pairs:
            pair.wanted = len(self.programs[pair.contract, pair.kind])
        most = max((pair.wanted for pair in pairs), default=0)
        for begin in range(0, most, SLICE):
            for pair in pairs:
                programs = self.programs[pair.contract, pair.kind]
                self.add_slice(pair, programs[begin : begin + SLICE])

    def add_slice(self, pair: Pair, programs: Sequence[Any]) -> None:
        if programs:
            task = messages.GivenTask(*pair.key, self.slices, programs=list(programs))
            self.tasks.append(task)
            self.slices += 1

    def handle_slice(self, task: messages.SliceTask, event: messages.Event) -> None:
        """After a crash, the programs behind the one that was running get another
        process."""
        assert isinstance(task, messages.GivenTask)
        pair = self.find_pair(task)
        counts = pair.running.get(task.number, messages.Counts())
        over = counts.programs + counts.avoided + sum(counts.undeclared.values())
        super().handle_slice(task, event)
        has_ended = isinstance(event, messages.Stopped) and event.blame()
        if has_ended and pair.crashes < MAX_CRASHES:
            self.add_slice(pair, task.programs[over + 1 :])
