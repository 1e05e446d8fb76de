"""Settings of a check, its result so far, and its failures on disk.

A failure is `failures/<signature>/<digest>-<backend>.json`, one shrunk program; of one
signature there may be several.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePath
from shlex import quote
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.interrupts import get_interrupt_status
from lockstep.harness.execution.shrink import Rank, get_rank
from lockstep.harness.programs.files import write_program
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    parse_program,
    read_flaky,
)
from lockstep.harness.workers.messages import (
    Counts,
    HarnessFailed,
    SliceDone,
    SliceTask,
    Stopped,
    Task,
)

# --- failures on disk -------------------------------------------------------------------


OUTDATED = "outdated"
"""The folder of programs that agree, against an entry of the ledger."""

HARNESS_FAILED = "harness-failed"
"""The folder of programs at which the harness failed."""


@dataclass(frozen=True)
class Failure:
    """A program that diverges, and its file.

    Attributes:
        cause: the number of its likely cause in the outcome, from 1: the same for all
            failures that probably have one; see `harness.execution.causes`. 0 if that is
            not known.
        flaky: the failure did not come back each time.
        options: of the command that runs it again, as its `meta` has them: without them
            the verdict may be another.
        unsaved: why there is no such file.
        asked: what a command has to be given as the backend, if that is not its name.
        answers: other backends of the check that have run the program → "agrees", "same"
            if they give the same wrong answer, or the signature that they show.
    """

    program: Program
    divergence: Divergence
    backend: str
    signature: str
    path: Path
    cause: int = 0
    flaky: Flaky | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    unsaved: str | None = None
    asked: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def form(self) -> Sequence[str]:
        """The operations without their fields and order. Programs with one signature and
        another form may show another bug."""
        return ["flaky"] if self.flaky else sorted(op["op"] for op in self.program.ops)

    def to_json(self) -> dict[str, Any]:
        """The program as its file would have it."""
        meta = {"signature": self.signature, "backend": self.backend, **self.options}
        meta |= {"step": self.divergence.step, "what": self.divergence.message}
        return replace(self.program, meta=meta).to_json()

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        return get_replay_line(self.path, self.asked or self.backend, self.options)


def save(failure: Failure) -> Failure:
    """Writes the file of a failure. If that is not possible, the result says why."""
    try:
        write_program(failure.path, failure.program)
    except OSError as error:
        return replace(failure, unsaved=error.strerror or str(error))
    return failure


def make_failure(
    folder: PurePath,
    program: Program,
    divergence: Divergence,
    backend: str,
    environment: Mapping[str, Any],
    found: Mapping[str, Any],
    options: Mapping[str, Any] = {},
    asked: str = "",
) -> Failure:
    """A failure with the content and the place of its file.

    Args:
        folder: of all failures.
        program: diverges, as `divergence` says.
        divergence: the first one of the program.
        backend: by the name that the user gave.
        environment: for `meta`: versions, device and platform, see `get_environment`.
        found: for `meta`: how it was found (front, seed, number of the slice).
        options, asked: see `Failure`.
    """
    signature = divergence.get_signature(program)
    path = Path(folder / signature / f"{program.digest()}-{slug(backend)}.json")
    meta = {
        "signature": signature,
        "backend": backend,
        **environment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
        **options,
        "step": divergence.step,
        "what": divergence.message,
        "expected": divergence.expected,
        "got": divergence.got,
        "replay": get_replay_line(path, asked or backend, options),
    }
    program = replace(program, meta=meta)
    return Failure(
        *(program, divergence, backend, signature, path),
        flaky=read_flaky(meta),
        options=options,
        asked=asked,
    )


MAX_KEPT = 3
"""Programs that are kept of one signature."""


def choose_kept(
    before: Sequence[Failure], new: Failure, original: str | None
) -> list[Failure]:
    """Chooses the failures with one signature that are kept: of each form the simplest,
    `MAX_KEPT` in all.

    Args:
        before: those that are kept.
        new: one more.
        original: the digest of the one that `new` replaces.
    """
    simplest: dict[str, Failure] = {}
    rest = [failure for failure in before if failure.program.digest() != original]
    for failure in sorted([*rest, new], key=get_order):
        simplest.setdefault(" ".join(failure.form), failure)
    return list(simplest.values())[:MAX_KEPT]


def get_order(failure: Failure) -> tuple[Rank, str]:
    """Of failures, the simplest first; of equally simple ones always the same."""
    return get_rank(failure.program), failure.program.digest()


def save_agreed(folder: Path, program: Program, entry: str, backend: str) -> Path:
    """Writes a program that should show a known divergence of the ledger, and agrees."""
    path = folder / OUTDATED / f"{slug(entry)}-{slug(backend)}.json"
    what = f"the ledger's entry {entry} describes an operation that agrees"
    write_program(path, replace(program, meta={"backend": backend, "what": what}))
    return path


def save_harness_failure(folder: Path, failed: HarnessFailed, backend: str) -> str:
    """Writes the program at which the harness failed, for a report to its makers.

    Returns:
        What to do, as the end of a message.
    """
    if failed.program is None:
        return "please report this"
    program = parse_program(failed.program, "a program")
    path = folder / HARNESS_FAILED / f"{program.digest()}-{slug(backend)}.json"
    meta = {"backend": backend, "what": failed.describe(), "kv-lockstep": __version__}
    try:
        write_program(path, replace(program, meta=meta))
    except OSError as error:
        document = json.dumps(program.to_json())
        return f"please report this with the program (not saved: {error}): {document}"
    return f"please report this with {path}"


def describe_stop(folder: Path, stopped: Stopped, backend: str) -> str:
    """Why a task has no answer; the program at which the harness failed is saved."""
    words = stopped.describe()
    if isinstance(stopped, HarnessFailed):
        words += f"; {save_harness_failure(folder, stopped, backend)}"
    return words


def slug(backend: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in backend)


OPTIONS: Mapping[str, tuple[type, ...]] = {
    "strict": (bool,),
    "step_time": (int, float),
    "start_time": (int, float),
}
"""Options of a check that may change a verdict, as `meta` names them → their types."""


def get_replay_line(path: Path, backend: str, options: Mapping[str, Any] = {}) -> str:
    """The command that runs a failure again. options: see `Failure`."""
    words = ["lockstep", "replay", quote(str(path)), "--backend", quote(backend)]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [f"{value:g}"]
    return " ".join(words)


# --- settings and results ---------------------------------------------------------------


SLICE = 125
"""Programs in a slice. Many small slices keep all workers busy until the end."""


@dataclass(frozen=True)
class Profile:
    """How many programs each backend runs of each kind.

    Attributes:
        programs: the most.
        least: a pair that has run so many, times the `depth` of its contract, may end;
            see `Pair.is_explored`. None: it runs all.
    """

    programs: int
    least: int | None = None

    def __str__(self) -> str:
        most = f"{self.programs:,}"
        return most if self.least is None else f"{self.least:,} to {most}"


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(100),
    "ci": Profile(1000, least=250),
    "nightly": Profile(25_000),
}
"""ci: of 131 planted mistakes, searched for with five seeds, the last was found after 256
programs of its kind, in contracts of depth 3 after 363 (`ci/bench/find.py`)."""

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
        return sum(one.programs for one in slices), sum(one.steps for one in slices)

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
        return sum((Counter(one.signatures) for one in slices), Counter[str]())

    def count_entered(self) -> int:
        """Counts the programs that ran on into a known divergence, those of unfinished
        slices included."""
        slices = [self, *self.running.values()]
        return sum(sum(one.entered.values()) for one in slices)

    def get_seconds(self) -> float:
        """Of one core, those of unfinished slices included."""
        return self.seconds + sum(one.seconds for one in self.running.values())

    def stop(self) -> None:
        """Unfinished slices do no more than they have done."""
        for counts in self.running.values():
            self.include(counts)
        self.running.clear()

    def list_undeclared(self) -> list[str]:
        """The operations of the contract that the backend does not declare."""
        every = CONTRACTS[self.contract].list_operations(self.kind)
        return [name for name in every if name not in self.declared.operations]

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


@dataclass(frozen=True)
class Settings:
    """The choices of the user.

    Attributes:
        backends: empty for all that are available here.
        programs, least: see `Profile`.
        step_seconds: see `harness.backends.driver.client`; so is `start_seconds`.
        strict: validate the messages of drivers against their schemas.
        unsupported: run registered backends with versions that are not tested, too.
        require_complete: what was not run or reached makes the exit status 2.
        slice: programs in a slice.
        corpus: the folder or URL with programs to start from, which gets more.
        trusted: backends of the project's settings: a program file may name one.
    """

    backends: Sequence[str] = ()
    kinds: Sequence[str] = ()
    programs: int = PROFILES["ci"].programs
    least: int | None = None
    generator: str = "hypothesis"
    seed: int = 0
    seconds: float | None = None
    jobs: int = 1
    failures: Path = Path("failures")
    step_seconds: float = STEP_SECONDS
    start_seconds: float = START_SECONDS
    strict: bool = False
    unsupported: bool = False
    require_complete: bool = False
    slice: int = SLICE
    corpus: str | None = None
    trusted: Sequence[str] = ()

    def get_options(self) -> dict[str, Any]:
        """The options of `OPTIONS` that are not at their default."""
        own = {
            "strict": (self.strict, False),
            "step_time": (self.step_seconds, STEP_SECONDS),
            "start_time": (self.start_seconds, START_SECONDS),
        }
        return {name: value for name, (value, usual) in own.items() if value != usual}

    def list_slices(self) -> list[tuple[int, int]]:
        """(number, programs) of the slices."""
        begins = enumerate(range(0, self.programs, self.slice))
        return [(n, min(self.slice, self.programs - begin)) for n, begin in begins]


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
        corpus: programs that its corpus has; None without one.
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
    corpus: int | None = None

    @property
    def is_complete(self) -> bool:
        return not self.is_cut and not any(pair.shortfall for pair in self.pairs)

    def stop(self, interrupt: KeyboardInterrupt) -> None:
        """Ctrl-C or a signal has ended the check: what was done counts."""
        self.is_cut, self.interrupted = True, get_interrupt_status(interrupt)
        for pair in self.pairs:
            pair.stop()

    @property
    def failures(self) -> list[Failure]:
        return [failure for pair in self.pairs for failure in pair.failures]

    def get_exit_status(self) -> int:
        """0 all agree; 1 a backend diverges, crashes or hangs; 2 something was not run;
        130 Ctrl-C, 143 SIGTERM."""
        if any(pair.is_diverging for pair in self.pairs):
            return 1
        asked = set(self.settings.backends) & set(self.unavailable)
        if asked or self.dead or any(pair.is_error for pair in self.pairs):
            return 2
        if self.unwritten:
            return 2
        if self.interrupted:
            return self.interrupted
        if self.settings.require_complete and any(pair.has_gaps for pair in self.pairs):
            return 2
        return 0 if any(pair.programs for pair in self.pairs) else 2
