"""The result of a check so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.interrupts import get_interrupt_status
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers.messages import Counts, SliceDone, SliceTask, Task

OFTEN = 3
"""A cell that so many steps have reached counts as explored."""


@dataclass
class Pair(Counts):
    """One backend and one kind, and the sums over its programs.

    Attributes:
        environment: versions, device and platform, for `meta` of failures.
        share: see `Backend`.
        unchecked: the promises that cannot be checked, in words.
        own_name: of a driver, by which it calls itself.
        programs_of: the backend whose programs it runs beside it; empty if it has its
            own.
        parted: why it runs alone although others declare the same, in words; or empty.
        wanted: programs that were planned.
        coverage: of the slices that are done; `reached` also has cells of running ones.
        digests: of the programs of each slice that is done.
        running: the counts of each slice that is not done.
        known: divergences of the ledger that are still there; `outdated` are the others.
        agreed: entries of the ledger that describe an operation that agrees.
    """

    backend: str
    contract: str
    kind: str
    declared: Kind
    environment: Mapping[str, Any] = field(default_factory=dict)
    share: int = 1
    unchecked: Sequence[str] = ()
    own_name: str = ""
    programs_of: str = ""
    parted: str = ""
    wanted: int = 0
    signatures: Counter[str] = field(default_factory=Counter, kw_only=True)
    undeclared: Counter[str] = field(default_factory=Counter, kw_only=True)
    coverage: Counter[Cell] = field(default_factory=Counter)
    reached: set[Cell] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    running: dict[int, Counts] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    crashes: int = 0
    known: int = 0
    outdated: list[str] = field(default_factory=list)
    agreed: set[str] = field(default_factory=set)

    @property
    def key(self) -> tuple[str, str, str]:
        """The first fields of its tasks."""
        return self.backend, self.contract, self.kind

    def owns(self, task: Task[Any]) -> bool:
        if not isinstance(task, SliceTask):
            return False
        return (task.backend, task.contract, task.kind) == self.key

    @property
    def name(self) -> str:
        return f"{self.backend} × {self.kind}"

    @property
    def is_diverging(self) -> bool:
        return bool(self.failures or self.outdated)

    @property
    def is_error(self) -> bool:
        return bool(self.errors or self.missing)

    @property
    def shortfall(self) -> str | None:
        """Words for the programs that crashes or errors kept from running."""
        done = self.get_progress()[0] + self.undeclared.total() + self.avoided
        done += self.crashes  # of each, one program
        if done >= self.wanted or not (self.crashes or self.errors):
            return None
        crashes = f"{self.crashes} crash" + ("es" if self.crashes > 1 else "")
        why = crashes if self.crashes else "an error"
        return f"stopped after {why}: {done:,} of {self.wanted:,} programs ran"

    @property
    def has_gaps(self) -> bool:
        """Whether some program was not run, or some cell not reached."""
        missed = not all(map(self.has_reached, self.cells))
        return missed or self.get_progress()[0] < self.wanted

    @property
    def is_unwritten(self) -> bool:
        """Whether too little of the backend is written to run a single step."""
        return bool(self.missing) and not self.steps

    def list_rare(self) -> list[Cell]:
        """Lists the cells of the kind that were reached seldom, or never."""
        return [cell for cell in self.cells if self.coverage[cell] < OFTEN]

    @property
    def is_explored(self) -> bool:
        """Whether each cell of the kind that was reached at all was reached often.

        Then a program is unlikely to reach one that none has reached: how likely it is
        can be estimated by the share of what was met once (I. J. Good, 1953).
        """
        return not any(self.coverage[cell] for cell in self.list_rare())

    def get_progress(self) -> tuple[int, int]:
        """Programs and steps so far, those of unfinished slices included."""
        slices = [self, *self.running.values()]
        return sum(counts.programs for counts in slices), sum(
            counts.steps for counts in slices
        )

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that a complete run must reach."""
        return CONTRACTS[self.contract].list_cells(self.kind, self.declared)

    def count_reached(self) -> int:
        """Counts the cells that were reached, those of running slices included."""
        return sum(map(self.has_reached, self.cells))

    def has_reached(self, cell: Cell) -> bool:
        return cell in self.coverage or cell in self.reached

    def count_signatures(self) -> Counter[str]:
        """Counts the programs with each signature, those of unfinished slices
        included."""
        slices = (self, *self.running.values())
        return sum((Counter(counts.signatures) for counts in slices), Counter[str]())

    def count_entered(self) -> int:
        """Counts the programs that ran on into a known divergence, those of unfinished
        slices included."""
        slices = [self, *self.running.values()]
        return sum(sum(counts.entered.values()) for counts in slices)

    def get_seconds(self) -> float:
        """Of one core, those of unfinished slices included."""
        return self.seconds + sum(counts.seconds for counts in self.running.values())

    def stop(self) -> None:
        """Unfinished slices do no more than they have done."""
        for counts in self.running.values():
            self.include(counts)
        self.running.clear()

    def list_undeclared(self) -> list[str]:
        """The operations of the contract that the backend does not declare."""
        names = CONTRACTS[self.contract].list_operations(self.kind)
        return [name for name in names if name not in self.declared.operations]

    def group_empty_cells(self) -> dict[str, list[str]]:
        """The cells that were not reached: state → operations."""
        empty: dict[str, list[str]] = {}
        for state, operation in self.cells:
            if not self.has_reached((state, operation)):
                empty.setdefault(state, []).append(operation)
        return empty

    def add(self, number: int, done: SliceDone) -> None:
        """A slice is done."""
        self.include(done.counts)
        self.digests[number] = done.digest
        for state, operation, times in done.coverage:
            self.coverage[state, operation] += times


@dataclass
class Rerun:
    """The failures that earlier runs have saved, and that ran again before all else.

    Attributes:
        ran: how many did.
        agreeing: the files of programs that agree now.
        absent: the files of flaky failures that did not come back.
        broken: why files in their places are not programs.
        left_out: how many were too many.
    """

    ran: int = 0
    agreeing: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: int = 0


@dataclass
class Outcome:
    """The result of a check so far.

    Attributes:
        saved: failures of earlier runs; they do not count among the programs.
        unavailable: backend → why it is not here, or why nothing of it was run.
        dead: backend → how loading it failed: it is broken.
        versions: package → version, of all backends.
        interrupted: the exit status of a check that Ctrl-C or a signal ended; else 0.
        unwritten: why there is no file of it.
    """

    settings: Settings
    pairs: list[Pair] = field(default_factory=list)
    saved: Rerun = field(default_factory=Rerun)
    unavailable: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    is_cut: bool = False
    interrupted: int = 0
    unwritten: str | None = None

    @property
    def is_complete(self) -> bool:
        return not self.is_cut and not any(pair.shortfall for pair in self.pairs)

    def stop(self, interrupt: KeyboardInterrupt) -> None:
        """Ctrl-C or a signal has ended the check: what was done counts."""
        self.is_cut, self.interrupted = True, get_interrupt_status(interrupt)
        for pair in self.pairs:
            pair.stop()

    def give_up(self, error: UsageError) -> None:
        """Nothing can be run any more: what was done counts.

        Raises:
            UsageError: nothing was done.
        """
        if not any(pair.steps or pair.running or pair.failures for pair in self.pairs):
            raise error
        self.is_cut = True
        for pair in self.pairs:
            pair.stop()
            if pair.programs < pair.wanted:
                pair.errors.append(str(error))

    @property
    def failures(self) -> list[Failure]:
        return [failure for pair in self.pairs for failure in pair.failures]

    def get_exit_status(self) -> int:
        """0 all agree; 1 a backend diverges, crashes or hangs; 2 something was not run;
        130 Ctrl-C, 143 SIGTERM."""
        if any(pair.is_diverging for pair in self.pairs):
            return 1
        missing = set(self.settings.backends) & set(self.unavailable)
        if missing or self.dead or any(pair.is_error for pair in self.pairs):
            return 2
        if self.unwritten:
            return 2
        if self.interrupted:
            return self.interrupted
        if self.settings.require_complete and any(pair.has_gaps for pair in self.pairs):
            return 2
        return 0 if any(pair.programs for pair in self.pairs) else 2
