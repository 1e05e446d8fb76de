"""Measures what generated programs need until a mistake is found.

    python ci/bench/find.py --json now.json --beside earlier.json

Looks for every mistake that is planted in a backend, and for every entry of the ledgers
of the peers that are here, with the ledger emptied. A slice is that of `lockstep check`,
derived programs and costly checks included, but nothing is shrunk: a search for a
planted mistake ends at the first divergence. Each search runs in one process, pinned to
one core; its seconds are those of the process (time.process_time), so that what others
take from the core does not count.

The table has the geometric means over all mistakes and seeds of programs, steps and CPU
seconds. With `--beside` it also has their ratios to the numbers in that file, of the
searches that both have. A search that ends at `--most` programs without the mistake
counts as if the next had shown it, and is listed. The mistakes are told apart by whether
their number in the list is even or odd: who tunes on one half sees in the other whether
the generator has learned anything.

Of the ledgers, a search runs the kinds of one peer in turn, slice by slice, until each
entry is found or a minute (`--seconds`) is over. An entry is found when a program
diverges with its signature behind an operation that the entry describes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import count, cycle
from multiprocessing import Queue, get_context
from pathlib import Path
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name

import click  # noqa: E402
from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from ci.bench.options import JSON, load  # noqa: E402
from lockstep.harness.backends.backend import Backend  # noqa: E402
from lockstep.harness.core.errors import Unavailable, Unloadable  # noqa: E402
from lockstep.harness.execution.record import Record  # noqa: E402
from lockstep.harness.jobs.settings import SLICE  # noqa: E402
from lockstep.harness.programs.ledger import Entry, load_ledger  # noqa: E402
from lockstep.harness.programs.program import Divergence, Program, walk  # noqa: E402
from lockstep.harness.workers.guard import spare_garbage  # noqa: E402
from lockstep.harness.workers.messages import Event, RandomTask  # noqa: E402
from lockstep.harness.workers.registry import (  # noqa: E402
    list_names,
    load_faults,
)
from lockstep.harness.workers.registry import load as load_or_raise  # noqa: E402
from lockstep.harness.workers.slices import RandomSlice  # noqa: E402

MOST = 2000
"""Programs until a search for a planted mistake is given up."""

SECONDS = 60.0
"""CPU seconds for all entries of one peer."""


# --- one search -------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A search for a planted mistake or, if `kind` is None, for all entries of a peer.

    Attributes:
        number: the index of the mistake in the list.
    """

    seed: int
    backend: str
    number: int = 0
    contract: str | None = None
    kind: str | None = None
    most: int = MOST
    seconds: float = SECONDS


@dataclass(frozen=True)
class Finding:
    """The end of the search for one mistake.

    Attributes:
        name: the name of the backend, or of the entry.
        programs: the number of programs until the mistake was found, including the
            program that shows it.
        seconds: the CPU time in seconds.
    """

    job: Job
    name: str
    is_found: bool
    programs: int
    seconds: float
    steps: int


class Found(Exception):
    """Ends a search that has found its mistake."""


class Worker:
    """A worker for a slice, which ignores events."""

    def __init__(self, record: Record, backend_name: str) -> None:
        self.record, self.backend_name = record, backend_name

    def emit(self, event: Event) -> None:
        """Ignores an event."""

    def is_fatal(self, program: Program) -> bool:
        return False


class Hunt(RandomSlice):
    """A slice that reports its divergences to `hit`, without shrinking.

    Attributes:
        hit: a function that is called with each divergence.
        last: the number of steps of the program that ended the search.
    """

    hit: Callable[[Program, Divergence], None]
    last = 0

    def report(
        self, program: Program, divergence: Divergence, avoid: Sequence[Entry]
    ) -> None:
        self.last = divergence.step + 1
        self.hit(program, divergence)
        self.last = 0


@cache
def open_record() -> Record:
    folder = tempfile.mkdtemp(prefix="lockstep-find-")
    return Record(Path(folder) / "record.json")


class Search:
    """Runs the slices of a job."""

    def __init__(self, job: Job) -> None:
        self.job, self.backend = job, load(job.backend)
        self.programs = self.steps = 0
        self.slice: Hunt | None = None
        self.entries = load_ledger(self.backend.ledger, self.backend.name)
        self.backend = replace(self.backend, ledger=None)
        self.findings: list[Finding] = []
        self.begin = time.process_time()

    def get_seconds(self) -> float:
        return time.process_time() - self.begin

    def run_slice(
        self,
        contract: str,
        kind: str,
        number: int,
        programs: int,
        hit: Callable[[Program, Divergence], None],
    ) -> None:
        job = self.job
        task = RandomTask(
            *(job.backend, contract, kind, number),
            seed=job.seed,
            programs=programs,
        )
        worker: Any = Worker(open_record(), job.backend)
        self.slice = Hunt(worker, self.backend, task)
        self.slice.hit = hit
        try:
            self.slice.check()
        finally:
            self.programs += self.slice.counts.programs
            self.steps += self.slice.counts.steps + self.slice.last
            self.slice = None

    def find_planted(self) -> list[Finding]:
        job = self.job
        assert job.contract and job.kind

        def hit(program: Program, divergence: Divergence) -> None:
            raise Found

        is_found = False
        try:
            for number in range(-(-job.most // SLICE)):
                left = min(SLICE, job.most - number * SLICE)
                self.run_slice(job.contract, job.kind, number, left, hit)
        except Found:
            is_found = True
        programs = self.programs + (not is_found)
        result = is_found, programs, self.get_seconds(), self.steps
        return [Finding(job, job.backend, *result)]

    def find_entries(self) -> list[Finding]:
        """Searches for all entries of a peer."""
        left = {entry.id: entry for entry in self.entries}

        def hit(program: Program, divergence: Divergence) -> None:
            for entry in list(left.values()):
                if shows(entry, program, divergence):
                    self.note(entry, True)
                    del left[entry.id]
            if not left or self.get_seconds() > self.job.seconds:
                raise Found

        try:
            for contract, kind, number in self.list_slices():
                self.run_slice(contract, kind, number, SLICE, hit)
                if self.get_seconds() > self.job.seconds:
                    break
        except Found:
            pass
        for entry in left.values():
            self.note(entry, False)
        return self.findings

    def list_slices(self) -> Iterator[tuple[str, str, int]]:
        """Contract, kind and number of the slices, in the order of a check."""
        contracts = self.backend.contracts.items()
        pairs = [(contract, kind) for contract, kinds in contracts for kind in kinds]
        for turn, (contract, kind) in zip(count(), cycle(pairs), strict=False):
            yield contract, kind, turn // len(pairs)

    def note(self, entry: Entry, is_found: bool) -> None:
        counts = self.slice.counts if self.slice else None
        programs = self.programs + (counts.programs if counts else 0)
        steps = self.steps + (counts.steps if counts else 0)
        result = is_found, programs, self.get_seconds(), steps
        self.findings.append(Finding(self.job, entry.id, *result))


def shows(entry: Entry, program: Program, divergence: Divergence) -> bool:
    """Returns whether a program shows the divergence that an entry describes.

    If the answers of the backend decide the state, only the signature is compared.
    """
    if divergence.get_signature(program) != entry.signature:
        return False
    if program.rules.leaves_choices:
        return True
    return any(
        step.skipped is None and entry.condition.holds(step.op, step.model)
        for step in walk(program, rows=False)
        if step.number <= divergence.step
    )


def pin(cores: Queue[int]) -> None:
    core = cores.get()
    if sys.platform == "linux":
        os.sched_setaffinity(0, {core})
    spare_garbage()  # as a worker does


def run_job(job: Job) -> list[Finding]:
    search = Search(job)
    return search.find_planted() if job.kind else search.find_entries()


# --- all of them ------------------------------------------------------------------------


def list_planted(backend: Backend, ids: Sequence[str]) -> list[tuple[int, Any]]:
    """Lists the mistakes that are planted in a backend, with their numbers."""
    every = load_faults(backend.faults) if backend.faults else []
    return [(n, one) for n, one in enumerate(every) if not ids or one.id in ids]


def list_peers() -> list[str]:
    """Lists the available backends that have ledger entries."""
    peers = []
    for name in list_names():
        try:
            backend = load_or_raise(name)
        except (Unavailable, Unloadable):
            continue
        if load_ledger(backend.ledger, backend.name):
            peers.append(name)
    return peers


def run_all(jobs: Sequence[Job], workers: int) -> Iterator[Finding]:
    """Runs jobs in parallel processes, each of which is pinned to its own core."""
    context = get_context("spawn")
    cores: Queue[int] = context.Queue()
    own = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
    for worker in range(workers):
        cores.put(own[worker % len(own)])
    with ProcessPoolExecutor(workers, context, pin, (cores,)) as pool:
        for findings in pool.map(run_job, jobs):
            yield from findings


def compute_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(sum(math.log(max(value, 1e-4)) for value in values) / len(values))


def summarize(findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the geometric means of some findings."""
    return {
        "searches": len(findings),
        "found": sum(finding.is_found for finding in findings),
        "programs": compute_mean([finding.programs for finding in findings]),
        "steps": compute_mean([max(1, finding.steps) for finding in findings]),
        "seconds": compute_mean([finding.seconds for finding in findings]),
    }


Earlier = Mapping[tuple[str, int], Mapping[str, Any]]
"""Name of a mistake and seed → the finding in the file of an earlier run."""


def read_earlier(path: Path | None) -> Earlier:
    """Reads the findings of planted mistakes from a file; empty without a path."""
    if path is None:
        return {}
    findings = json.loads(path.read_text())["findings"]
    return {
        (finding["name"], finding["job"]["seed"]): finding
        for finding in findings
        if finding["job"]["kind"]
    }


def compute_ratios(findings: Sequence[Finding], earlier: Earlier) -> dict[str, float]:
    """Compares findings with those of the same searches in an earlier run."""
    pairs = [
        (asdict(finding), earlier[finding.name, finding.job.seed])
        for finding in findings
        if (finding.name, finding.job.seed) in earlier
    ]
    return {
        name: compute_mean([now[name] for now, _ in pairs])
        / compute_mean([before[name] for _, before in pairs])
        for name in ("programs", "steps", "seconds")
        if pairs
    }


def list_rows(findings: Sequence[Finding], earlier: Earlier) -> list[dict[str, Any]]:
    """Lists the means of all findings and of both halves, and ratios if any."""
    halves = {
        "all": list(findings),
        "even": [finding for finding in findings if finding.job.number % 2 == 0],
        "odd": [finding for finding in findings if finding.job.number % 2 == 1],
    }
    return [
        {"half": half, **summarize(some), "ratios": compute_ratios(some, earlier)}
        for half, some in halves.items()
        if some
    ]


@click.command()
@click.option("--backend", "names", multiple=True, default=["torch-cpu"])
@click.option("--seeds", type=click.IntRange(1), default=5)
@click.option("--first-seed", type=int, default=0)
@click.option("--fault", "ids", multiple=True, help="This mistake only; may be repeated.")
@click.option("--peer", "peers", multiple=True, help="The ledger of this peer only.")
@click.option("--planted/--no-planted", default=True)
@click.option("--ledger/--no-ledger", default=True)
@click.option("--most", type=click.IntRange(1), default=MOST)
@click.option("--seconds", type=click.FloatRange(1), default=SECONDS)
@click.option("--beside", type=click.Path(exists=True, path_type=Path))
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1)
@JSON
def main(
    names: Sequence[str],
    seeds: int,
    first_seed: int,
    ids: Sequence[str],
    peers: Sequence[str],
    planted: bool,
    ledger: bool,
    most: int,
    seconds: float,
    beside: Path | None,
    jobs: int,
    path: Path | None,
) -> None:
    """Measures what generated programs need until mistakes are found."""
    chosen = range(first_seed, first_seed + seeds)
    work = []
    for name in names if planted else ():
        for number, fault in list_planted(load(name), ids):
            search = fault.backend, number, fault.contract, fault.kind
            work += [Job(seed, *search, most=most) for seed in chosen]
    for name in (peers or list_peers()) if ledger else ():
        work += [Job(seed, name, seconds=seconds) for seed in chosen]
    findings = []
    with Console(width=96, stderr=True).status("") as status:
        for finding in run_all(work, jobs):
            findings.append(finding)
            status.update(f"{len(findings)} of {len(work)}: {finding.name}")
    rows = list_rows([f for f in findings if f.job.kind], read_earlier(beside))
    if path is not None:
        save(path, findings, rows)
    show(findings, rows)


def save(
    path: Path, findings: Sequence[Finding], rows: Sequence[Mapping[str, Any]]
) -> None:
    report = {
        "versions": {
            "python": platform.python_version(),
            "hypothesis": version("hypothesis"),
        },
        "planted": rows,
        "findings": [asdict(finding) for finding in findings],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def show(findings: Sequence[Finding], rows: Sequence[Mapping[str, Any]]) -> None:
    console = Console(width=96)
    if rows:
        console.print(make_table("planted mistakes", rows))
    entries = [finding for finding in findings if not finding.job.kind]
    if entries:
        row = {"half": "all", **summarize(entries), "ratios": {}}
        console.print(make_table("entries of ledgers", [row]))
        slowest = max(finding.seconds for finding in entries)
        console.print(f"the last entry of a peer after {slowest:.1f} s at most")
    for finding in findings:
        if not finding.is_found:
            tried = f"seed {finding.job.seed}, {finding.programs:,} programs"
            console.print(f"{finding.name}: not found: {tried}")


def make_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("half", "found", "programs", "steps", "CPU ms"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = {**row, "seconds": row["seconds"] * 1e3}
        cells = [
            f"{numbers[name]:.{digits}f}"
            + (f" ({row['ratios'][name]:.2f})" if row["ratios"] else "")
            for name, digits in (("programs", 1), ("steps", 0), ("seconds", 0))
        ]
        table.add_row(row["half"], f"{row['found']} of {row['searches']}", *cells)
    return table


if __name__ == "__main__":
    main()
