"""Measures how fast programs are checked on one core: steps per second, and the share of
each task.

    python ci/bench/harness.py --backend torch-cpu --backend mlx-cpu

A step is one executed operation. For each backend and kind, one process, pinned to one
core, draws programs from Hypothesis, records them and checks them. Each round uses
different programs; the results are medians of the rounds. On a CPU, times are the CPU
time of all threads of the process (time.process_time), so other processes on the core do
not count; on a GPU, the process waits for the device, so times are wall-clock times.

The shares of this time, each measured separately with the same programs:

* draw: generating programs, without running them;
* record: the write-ahead record of all programs and steps;
* reference: computing the expected answers, without comparing them;
* backend: the calls of the backend in a checked run, measured by a stopwatch
  (`stopwatch.py`): making or overwriting an array, opening a cache, every method until
  the returned arrays are computed, and attention. The time to start and stop the watch is
  subtracted;
* compare: the rest: making the contents of arrays, reading returned arrays, comparing
  arrays, watching arrays, checking legality, counting cells.

`outside` is the sum of all shares except reference and backend. The row "all" divides the
steps of all kinds by their total time; each kind has the same number of programs. BARS
and OUTSIDE are the required results; results that miss them are marked.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name

import click  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402
from ci.bench.speed.report import get_processor  # noqa: E402
from ci.bench.stopwatch import Stopwatch  # noqa: E402
from lockstep.harness.backends.backend import Backend  # noqa: E402
from lockstep.harness.contracts import CONTRACTS  # noqa: E402
from lockstep.harness.contracts.operation import advance  # noqa: E402
from lockstep.harness.execution.executor import Coverage, run  # noqa: E402
from lockstep.harness.execution.record import Record  # noqa: E402
from lockstep.harness.programs.generate.drawer import Drawer  # noqa: E402
from lockstep.harness.programs.generate.hypothesis import generate  # noqa: E402
from lockstep.harness.programs.ledger import load_ledger  # noqa: E402
from lockstep.harness.programs.program import Program  # noqa: E402
from lockstep.harness.workers.guard import spare_garbage  # noqa: E402
from lockstep.harness.workers.registry import load  # noqa: E402
from lockstep.harness.workers.slices import is_watched  # noqa: E402

KINDS = [kind for rules in CONTRACTS.values() if rules.has_arrays for kind in rules.kinds]
SHARES = ("draw", "record", "reference", "backend", "compare")

BARS = {"torch-cpu": 7_500, "mlx-cpu": 3_750}
"""The minimal steps per second, by backend."""

OUTSIDE = 0.55
"""The maximal share outside backend and reference."""

Row = dict[str, Any]


# --- one kind of a backend --------------------------------------------------------------


class Bench:
    """Measures the programs of one kind of cache on one backend."""

    def __init__(
        self, backend: Backend, kind: str, record: Record, programs: int
    ) -> None:
        self.backend, self.record, self.count = backend, record, programs
        # The CPU time of the process does not include waiting for a GPU.
        self.clock = time.process_time if backend.device == "cpu" else time.perf_counter
        (contract,) = [name for name, rules in CONTRACTS.items() if kind in rules.kinds]
        declared = backend.contracts[contract][kind]
        avoid = load_ledger(backend.ledger, backend.name)
        self.drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
        self.watch = Stopwatch(backend)
        self.coverage: Coverage = Counter()
        self.programs: list[Program] = []
        self.runs = self.steps = 0

    def measure(self, seed: int) -> Mapping[str, float]:
        """Returns the microseconds per step, for the check and for each share."""
        draw, count = self.drawer.draw, self.count
        self.programs = []
        taken = {
            "draw": self.time(lambda: generate(count, seed, draw, self.programs.append)),
            "check": self.time(lambda: generate(count, seed, draw, self.check)),
        }
        steps = self.steps
        taken |= {
            "record": self.time(self.run_record),
            "reference": self.time(self.run_reference),
            "backend": self.time_backend(),
        }
        taken = {name: seconds / steps * 1e6 for name, seconds in taken.items()}
        rest = taken["check"] - sum(taken[name] for name in SHARES if name in taken)
        return {**taken, "compare": rest, "steps": steps}

    def time(self, work: Callable[[], Any]) -> float:
        """Returns the time that `work` takes, in seconds."""
        self.runs = self.steps = 0
        begin = self.clock()
        work()
        return self.clock() - begin

    def check(self, program: Program) -> None:
        """Runs a program, like a worker."""
        self.record.begin(program, self.backend.name)
        self.run(program, self.backend, self.record.step)

    def run(
        self, program: Program, backend: Backend, on_step: Callable[[int], None] | None
    ) -> None:
        result = run(program, backend, is_watched(self.runs), self.coverage, on_step)
        self.runs += 1
        self.steps += result.steps
        if result.divergence is not None:
            raise SystemExit(f"{self.backend.name} diverges: {result.divergence}")

    def run_record(self) -> None:
        for program in self.programs:
            self.record.begin(program, self.backend.name)
            for step in range(len(program.ops)):
                self.record.step(step)

    def run_reference(self) -> None:
        """Computes the expected answers, without running a backend."""
        for program in self.programs:
            rules = program.rules
            model = rules.open_model(program.config)
            for op in program.ops:
                advance(rules.operations, op, model)

    def time_backend(self) -> float:
        """Returns the seconds that the backend takes in a check.

        The time that other processes took from the core is subtracted.
        """
        self.watch.take()
        begin = time.perf_counter()
        seconds = self.time(self.run_watched)
        return self.watch.take() * min(1.0, seconds / (time.perf_counter() - begin))

    def run_watched(self) -> None:
        for program in self.programs:
            self.run(program, self.watch.backend, None)


def measure_rounds(bench: Bench, rounds: int) -> dict[str, float]:
    """Returns the median of each number over rounds with different programs.

    The first run is not counted, because it builds tables. On a GPU, all programs run
    before the measurement, because each kernel is compiled for the sizes of the programs.
    """
    for seed in [rounds] if bench.backend.device == "cpu" else range(rounds):
        bench.measure(seed)
    measured = [bench.measure(seed) for seed in range(rounds)]
    return {name: median(taken[name] for taken in measured) for name in measured[0]}


# --- the numbers ------------------------------------------------------------------------


def make_row(backend: str, kind: str, taken: Mapping[str, float]) -> Row:
    """Makes a row of results from the result of `measure_rounds`."""
    rate = 1e6 / taken["check"]
    shares = {name: taken[name] / taken["check"] for name in SHARES}
    shares["outside"] = 1 - shares["reference"] - shares["backend"]
    holds = {
        "rate": rate >= BARS.get(backend, 0),
        "outside": shares["outside"] <= OUTSIDE,
    }
    return {
        **{"backend": backend, "kind": kind, "rate": rate, "shares": shares},
        **{"holds": holds if backend in BARS else {}, "taken": taken},
    }


def add_up(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the mean microseconds per step over all steps of the given rows."""
    total = sum(row["taken"]["steps"] for row in rows)
    return {
        name: sum(row["taken"][name] * row["taken"]["steps"] for row in rows) / total
        for name in rows[0]["taken"]
    }


def print_rows(backend: str, rows: Sequence[Row]) -> None:
    title = f"{backend}: checked steps per second; percent of them (! misses its bar)"
    cells = []
    for row in rows:
        marks = {name: "" if holds else "!" for name, holds in row["holds"].items()}
        rate = f"{row['rate']:,.0f}{marks.get('rate', '')}"
        shares = [f"{row['shares'][name]:.0%}" for name in SHARES]
        outside = f"{row['shares']['outside']:.0%}{marks.get('outside', '')}"
        cells.append([row["kind"], rate, *shares, outside])
    print_table(title, ["kind", "steps/s", *SHARES, "outside"], cells)


@click.command()
@click.option("--backend", "names", multiple=True, default=list(BARS))
@click.option("--kind", "kinds", multiple=True, default=KINDS)
@click.option("--programs", type=click.IntRange(1), default=100, help="In each round.")
@click.option("--rounds", type=click.IntRange(1), default=5)
@JSON
def main(
    names: Sequence[str],
    kinds: Sequence[str],
    programs: int,
    rounds: int,
    path: Path | None,
) -> None:
    """Measures checked steps per second on one core."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows: list[Row] = []
    versions = {"python": platform.python_version(), "hypothesis": version("hypothesis")}
    report = {
        "machine": {"cpu": get_processor(), "system": platform.platform()},
        "versions": versions,
        "unit": "taken: µs a step; rate: steps per second; shares: of check",
        "bars": {**BARS, "outside": OUTSIDE},
        **{"programs": programs, "rounds": rounds, "rows": rows},
    }
    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder) / "record.json")
        for name in names:
            backend = load(name)
            spare_garbage()  # as a worker does
            versions.update(backend.versions)
            first = len(rows)
            for kind in kinds:
                bench = Bench(backend, kind, record, programs)
                rows.append(make_row(name, kind, measure_rounds(bench, rounds)))
                if path:  # keeps the results so far if the process is ended
                    path.write_text(json.dumps(report, indent=1) + "\n")
            rows.append(make_row(name, "all", add_up(rows[first:])))
            print_rows(name, rows[first:])
        record.close()
    if path:
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
