"""One backend and kind: what is done with its programs, and how long each part takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from statistics import median
from typing import Any

from ci.bench.pace.stopwatch import Stopwatch
from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import advance
from lockstep.harness.execution.executor import Coverage, run
from lockstep.harness.execution.record import Record
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT
from lockstep.harness.programs.generate.hypothesis import generate
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.messages import Event, RandomTask
from lockstep.harness.workers.slices import RandomSlice, is_watched, make_walk

BEGUN, DEPTH = 2, 4
"""Operations of the programs of the explorer: those of a beginning, and all."""

BEHIND = 5
"""Programs behind each beginning."""

Seconds = dict[str, float]


class Bench:
    """The programs of a kind of cache, on a backend.

    Attributes:
        steps: the number of operations that were checked since `time` was last called.
        runs: the number of programs that were checked since `time` was last called.
    """

    def __init__(
        self, backend: Backend, kind: str, record: Record, programs: int
    ) -> None:
        self.backend, self.kind, self.record = backend, kind, record
        self.count = programs
        # Whoever waits for a GPU takes no time of the process.
        self.clock = time.process_time if backend.device == "cpu" else time.perf_counter
        (self.contract,) = [n for n, rules in CONTRACTS.items() if kind in rules.kinds]
        declared = backend.contracts[self.contract][kind]
        avoid = load_ledger(backend.ledger, backend.name)
        self.drawer = Drawer(self.contract, kind, declared, backend.dtypes, avoid)
        self.walk = make_walk(self.drawer, "standard", backend)
        self.beginnings = list(self.walk.find_longest(ROOT, BEGUN))
        self.watch = Stopwatch(backend)
        self.coverage: Coverage = Counter()
        self.programs: list[Program] = []
        self.steps = self.runs = 0

    def measure(self, seed: int) -> Mapping[str, float]:
        """Returns microseconds per step for each kind of check, and for parts of it."""
        draw, count = self.drawer.draw, self.count
        self.programs = []
        keep = self.programs.append
        draw_seconds = self.time(lambda: generate(count, seed, draw, keep))
        taken = {
            "check": self.rate(lambda: generate(count, seed, draw, self.check)),
            "explore": self.rate(lambda: self.explore(seed)),
            "shard": self.rate(lambda: self.run_shard(seed)),
        }
        parts = {
            "draw": draw_seconds,
            "record": self.time(self.run_record),
            "reference": self.time(self.run_reference),
            "backend": self.time_backend(),
        }
        steps = self.count_steps()
        taken |= {name: seconds / steps * 1e6 for name, seconds in parts.items()}
        taken["compare"] = taken["check"] - sum(taken[name] for name in parts)
        return {**taken, "steps": steps}

    def time(self, work: Callable[[], Any]) -> float:
        """Returns the time that `work` takes, in seconds."""
        self.steps = self.runs = 0
        begin = self.clock()
        work()
        return self.clock() - begin

    def rate(self, work: Callable[[], Any]) -> float:
        """Returns the time that `work` takes, in microseconds per step."""
        seconds = self.time(work)
        return seconds / self.steps * 1e6

    # --- ways to check ------------------------------------------------------------------

    def check(self, program: Program) -> None:
        """Runs a program as a worker does."""
        self.record.begin(program, self.backend.name)
        self.run(program, self.backend, self.record.step)

    def run(
        self, program: Program, backend: Backend, on_step: Callable[[int], None] | None
    ) -> None:
        every = is_watched(self.runs)
        self.runs += 1
        result = run(program, backend, every, self.coverage, on_step)
        if result.divergence is not None:
            raise SystemExit(f"{self.backend.name} diverges: {result.divergence}")
        self.steps += result.steps

    def explore(self, seed: int) -> None:
        """Runs some of the explorer's programs that continue some beginnings."""
        apart = 1 + len(self.beginnings) * BEHIND // self.count
        for start in self.beginnings[seed % apart :: apart]:
            for branch in islice(self.walk.find_longest(start, DEPTH), BEHIND):
                self.check(self.walk.make_program(branch))

    def run_shard(self, seed: int) -> None:
        """Runs a slice of `lockstep check`, with derived programs and a digest."""
        task = RandomTask(
            *(self.backend.name, self.contract, self.kind, 0),
            seed=seed,
            programs=self.count,
        )
        done = RandomSlice(self, self.backend, task).check()  # type: ignore[arg-type]
        if done.counts.signatures:
            raise SystemExit(f"{self.backend.name} diverges: {done.counts.signatures}")
        self.steps = done.counts.steps

    def is_fatal(self, program: Program) -> bool:
        return False

    def emit(self, event: Event) -> None:
        """Ignores the events of a worker."""

    @property
    def backend_name(self) -> str:
        return self.backend.name

    # --- the parts of the first ---------------------------------------------------------

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
        """Returns the seconds of checking that the backend takes.

        The time that other processes took from the core is subtracted.
        """
        self.watch.take()
        begin = time.perf_counter()
        seconds = self.time(self.run_watched)
        return self.watch.take() * min(1.0, seconds / (time.perf_counter() - begin))

    def run_watched(self) -> None:
        for program in self.programs:
            self.run(program, self.watch.backend, None)

    def count_steps(self) -> int:
        return sum(len(program.ops) for program in self.programs)


def measure_rounds(bench: Bench, rounds: int) -> dict[str, float]:
    """Returns the median of each number over rounds with different programs.

    The first run does not count, since it makes tables. On a GPU, all programs run before
    the measurement, since each kernel is compiled for the sizes of the programs.
    """
    for seed in [rounds] if bench.backend.device == "cpu" else range(rounds):
        bench.measure(seed)
    measured = [bench.measure(seed) for seed in range(rounds)]
    return {name: median(one[name] for one in measured) for name in measured[0]}
