"""A slice of the programs for one kind of one backend, as a worker runs it."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import Generic, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.execution.executor import Coverage, Result, run
from lockstep.harness.execution.shrink import make_busy_clock
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.runner import Runner

PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0

MAX_HANGS = 2
"""Programs at which a driver may hang before the rest of a slice is left out."""

T = TypeVar("T", bound=messages.SliceTask)


class Slice(ABC, Generic[T]):
    """Runs its programs, counts them, and shrinks and reports those that diverge."""

    def __init__(self, worker: Runner, backend: Backend, task: T) -> None:
        self.worker, self.backend, self.task = worker, backend, task
        self.counts = messages.Counts()
        self.coverage: Coverage = Counter()
        self.told: set[Cell] = set()
        self.known = set(task.known)
        self.avoid = load_ledger(backend.ledger, backend.name)
        self.digest = hashlib.sha256()
        self.hangs = 0
        self.reported = 0.0
        self.started = time.monotonic()

    @abstractmethod
    def generate(self) -> None:
        """Makes the programs, and calls `count` with each."""

    def check(self) -> messages.SliceDone:
        """Runs all programs.

        Raises:
            Unavailable: a driver hangs again and again.
        """
        self.generate()
        self.counts.seconds = self.get_seconds()
        coverage = [(*cell, times) for cell, times in sorted(self.coverage.items())]
        return messages.SliceDone(self.counts, coverage, self.digest.hexdigest())

    def count(self, program: Program) -> None:
        """Runs one program, and counts it."""
        self.counts.programs += 1
        result = self.run(program)
        divergence = result.divergence
        self.counts.unfinished += divergence is not None and divergence.what == "missing"
        self.counts.steps += result.steps
        self.counts.skipped += result.skipped
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.report_progress()

    def report_progress(self) -> None:
        self.reported = time.monotonic()
        self.counts.seconds = self.get_seconds()
        fresh = [cell for cell in self.coverage if cell not in self.told]
        self.told.update(fresh)
        self.worker.emit(messages.Progress(self.counts, fresh))

    def run(self, program: Program) -> Result:
        """Runs a program; shrinks and reports a divergence that is new."""
        record = self.worker.record
        self.digest.update(record.begin(program, self.worker.asked))
        result = run(program, self.backend, coverage=self.coverage, on_step=record.step)
        self.counts.margin = max(self.counts.margin, result.margin)
        if result.divergence is not None:
            self.report(program, result.divergence)
            self.hangs += result.divergence.what == "hang"
            if self.hangs >= MAX_HANGS:  # each costs a second at least
                raise Unavailable(
                    f"{result.divergence.message}; that was the second program, and the"
                    " rest is left out"
                )
        return result

    def report(self, program: Program, divergence: Divergence) -> None:
        """Sends a program that diverges in a new way, then the shorter one; the same for
        programs that diverge in other ways while it is made shorter."""
        if divergence.what == "missing":  # there is nothing to shrink
            self.counts.missing.setdefault(divergence.message, divergence.operation)
            return
        messages.tally(self.counts.signatures, divergence.get_signature(program))
        waiting = [(program, divergence)]
        while waiting:
            program, divergence = waiting.pop(0)
            signature = divergence.get_signature(program)
            if signature in self.known or divergence.what == "missing":
                continue
            self.known.add(signature)
            self.emit_found(program, divergence)  # for whoever stops the run now
            limits = SHRINK_SECONDS, self.avoid, make_busy_clock()
            small = self.worker.shrink(program, divergence, self.backend, *limits)
            self.emit_found(small.program, small.divergence)
            waiting += small.others.values()

    def emit_found(self, program: Program, divergence: Divergence) -> None:
        after = self.counts.programs, self.get_seconds()
        self.worker.emit(messages.Found(program.to_json(), divergence, *after))

    def get_seconds(self) -> float:
        return round(time.monotonic() - self.started, 3)


def make_drawer(
    backend: Backend, task: messages.SliceTask | messages.SurveyDomain
) -> Drawer:
    """Draws programs of a kind as the backend declares it, and avoids its ledger."""
    declared = backend.contracts[task.contract][task.kind]
    avoid = load_ledger(backend.ledger, backend.name)
    return Drawer(task.contract, task.kind, declared, backend.dtypes, avoid)
