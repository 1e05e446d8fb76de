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
from lockstep.harness.execution.comparisons import CONTENTS
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers.messages import Counts, SliceDone, SliceTask, Task

OFTEN = 3
"""The number of steps that must reach a cell for the cell to count as explored."""


@dataclass
class Pair(Counts):
    """A backend and a kind, with the sums over the programs of the pair.

    Attributes:
        environment: versions, device and platform, for `meta` of failures.
        share: see `Backend`.
        unchecked: descriptions of the promises that cannot be checked.
        own_name: the name that a driver gives itself.
        programs_of: the first backend of the group, for which the programs are drawn;
            empty if the programs are drawn for this pair.
        parted: the reason why the pair was separated from its group; empty if it was not.
        wanted: the number of planned programs.
        coverage: the counts of cells in completed slices.
        left_out: cell → the number of drawn calls that broke a duty.
        reached: the cells that were reached; unlike `coverage`, includes running slices.
        digests: the digest of the programs of each completed slice.
        running: the counts of each unfinished slice.
        known: the number of ledger entries whose programs still diverge.
        outdated: the ledger entries whose programs no longer diverge as described.
        agreed: ledger entries that describe an operation that agrees.
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
    left_out: Counter[Cell] = field(default_factory=Counter)
    aimed: list[Cell] = field(default_factory=list)
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
        """The backend, the contract and the kind, which also identify the tasks of this
        pair."""
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
    def shortfall(self) -> str | None:
        """Describes how many programs did not run because of crashes or errors."""
        done = self.total.programs + self.undeclared.total() + self.avoided
        done += self.crashes  # each crash ended one program
        if done >= self.wanted or not (self.crashes or self.errors):
            return None
        crashes = f"{self.crashes} crash" + ("es" if self.crashes > 1 else "")
        reason = crashes if self.crashes else "an error"
        return f"stopped after {reason}: {done:,} of {self.wanted:,} programs ran"

    @property
    def has_gaps(self) -> bool:
        """Whether a planned program was not run, or a cell was not reached."""
        missed = not all(map(self.has_reached, self.cells))
        return missed or self.total.programs < self.wanted

    @property
    def is_unwritten(self) -> bool:
        """Whether no step could run because functions of the backend are missing."""
        return bool(self.missing) and not self.steps

    def list_unproven(self) -> list[str]:
        """Lists the reasons why complete programs that agree show too little: an
        operation that every cache needs never ran, no contents were compared, or the
        backend's reports are always empty."""
        total = self.total
        if self.is_diverging or self.missing or self.errors:
            return []
        if not total.programs or not 0 < self.wanted <= total.programs:
            return []
        essential = CONTRACTS[self.contract].list_essential()
        idle = ", ".join(name for name in essential if name not in total.operations)
        reason = ", maybe because of a duty" if self.declared.duties else ""
        reasons = [f"{idle} never ran{reason}"] if idle else []
        if not total.compared.get(CONTENTS):
            reasons.append("contents: never compared")
        for name in sorted(self.declared.tells):
            expected_count = total.compared.get(f"{name} due", 0)
            if expected_count >= OFTEN and not total.compared.get(name):
                steps = f"{expected_count} steps that should fill it"
                reasons.append(f"{name}: always empty, in {steps}")
        return reasons

    def list_rare(self) -> list[Cell]:
        """Lists the cells of the kind that were reached fewer than OFTEN times."""
        return [cell for cell in self.cells if self.coverage[cell] < OFTEN]

    @property
    def is_explored(self) -> bool:
        """Whether every reached cell of the kind was reached at least OFTEN times, and
        the last slice has aimed at the other cells in vain.

        A further program is then unlikely to reach a new cell: the probability of a new
        cell can be estimated by the share of cells that were reached once (I. J. Good,
        1953).
        """
        rare = self.list_rare()
        return not rare or (
            self.aimed == rare and not any(self.coverage[cell] for cell in rare)
        )

    def aim(self) -> list[Cell]:
        """Returns the cells at which the next slice aims, and notes them in `aimed`."""
        self.aimed = self.list_rare()
        return self.aimed

    @property
    def total(self) -> Counts:
        """The counts so far, including unfinished slices."""
        total = Counts()
        for counts in (self, *self.running.values()):
            total.include(counts)
        return total

    @cached_property
    def declared_cells(self) -> list[Cell]:
        """The cells of the kind as declared."""
        return CONTRACTS[self.contract].list_cells(self.kind, self.declared)

    @property
    def cells(self) -> list[Cell]:
        """The cells that a complete run must reach. A cell does not count if at least
        OFTEN calls were drawn for it and all of them broke a duty."""
        return [
            cell
            for cell in self.declared_cells
            if self.left_out[cell] < OFTEN or self.has_reached(cell)
        ]

    def count_reached(self) -> int:
        """Counts the cells that were reached, also in running slices."""
        return sum(map(self.has_reached, self.cells))

    def has_reached(self, cell: Cell) -> bool:
        return cell in self.coverage or cell in self.reached

    def stop(self) -> None:
        """Adds the counts of unfinished slices as final counts."""
        for counts in self.running.values():
            self.include(counts)
        self.running.clear()

    def list_undeclared(self) -> list[str]:
        """Lists the operations of the contract that the backend does not declare."""
        names = CONTRACTS[self.contract].list_operations(self.kind)
        return [name for name in names if name not in self.declared.operations]

    def group_empty_cells(self) -> dict[str, list[str]]:
        """Groups the cells that were not reached: state → operations."""
        empty: dict[str, list[str]] = {}
        for state, operation in self.cells:
            if not self.has_reached((state, operation)):
                empty.setdefault(state, []).append(operation)
        return empty

    def add(self, number: int, done: SliceDone) -> None:
        """Adds the result of a completed slice."""
        self.include(done.counts)
        self.digests[number] = done.digest
        for state, operation, times in done.coverage:
            self.coverage[state, operation] += times
        for state, operation, times in done.left_out:
            self.left_out[state, operation] += times


@dataclass
class Rerun:
    """The saved failures of earlier runs, which a check runs before other programs.

    Attributes:
        ran: the number of failures that ran again.
        agreeing: the files of programs that now agree.
        excluded: the files of programs that break a duty of callers.
        absent: the files of flaky failures that did not occur again.
        broken: error messages about files that are not valid programs.
        left_out: the number of failures that were skipped.
    """

    ran: int = 0
    agreeing: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: int = 0


@dataclass
class Outcome:
    """The result of a check so far.

    Attributes:
        saved: the failures of earlier runs, which are not counted as programs.
        unavailable: backend → why it is unavailable, or why no program of it was run.
        dead: backend → the error while loading it; the backend is broken.
        versions: package → version, of all backends.
        interrupted: the exit status of a check that Ctrl-C or a signal ended; else 0.
        unwritten: the reason why the file of the outcome could not be written.
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
        """Ends the check after Ctrl-C or a signal, and keeps the results so far."""
        self.is_cut, self.interrupted = True, get_interrupt_status(interrupt)
        for pair in self.pairs:
            pair.stop()

    def give_up(self, error: UsageError) -> None:
        """Ends the check after an error that stops all runs, and keeps the results so
        far.

        Raises:
            UsageError: the check has no results.
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
        """Returns the exit status: 0 if all programs agree; 1 if a backend diverges,
        crashes or hangs; 2 if programs or backends could not run, or if programs show
        too little; 130 after Ctrl-C, 143
        after SIGTERM."""
        if any(pair.is_diverging for pair in self.pairs):
            return 1
        missing = set(self.settings.backends) & set(self.unavailable)
        is_failed = any(
            pair.errors or pair.missing or pair.list_unproven() for pair in self.pairs
        )
        if missing or self.dead or is_failed or self.unwritten:
            return 2
        if self.interrupted:
            return self.interrupted
        if self.settings.require_complete and any(pair.has_gaps for pair in self.pairs):
            return 2
        return 0 if any(pair.programs for pair in self.pairs) else 2
