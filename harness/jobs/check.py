"""The job of `lockstep check`: every chosen backend and kind against the reference."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.harness.execution.shrink import Shrinker, get_rank
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings, save
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

MAX_CRASHES = 2
"""After so many, the remaining slices of a pair are left out."""

CRASH_SHRINK_SECONDS = 10.0

BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
"""Where a crash is replayed: an error in a kernel shows in the step that launched it."""


def open_pool(
    settings: Settings, jobs: int | None = None, variables: Mapping[str, str] = {}
) -> Pool:
    """Opens a pool as the user asked for it.

    Args:
        settings: what the user chose.
        jobs: workers; None for as many as the user chose.
        variables: environment variables of the workers.
    """
    limits = settings.step_seconds, settings.strict
    folder = settings.failures / RUNNING
    return Pool(jobs or settings.jobs, folder, *limits, variables)


def run_tasks(
    tasks: Iterable[messages.Task[Any]],
    jobs: int,
    handle: Callable[[Any, messages.Event], None],
    watch: Callable[[], None],
) -> None:
    """Runs tasks that need the reference alone.

    The results do not depend on which worker runs a task.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-") as records,
        Pool(jobs, Path(records) / RUNNING) as pool,
    ):
        for task, event in pool.run(deque(tasks), watch):
            handle(task, event)


class Campaign:
    """Plans the slices, hands them to a pool, and gathers what comes back.

    Args:
        settings: what the user chose.
        names: the registered backends, if the settings name none.
        watch: is called with the outcome whenever it may have changed.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        watch: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.settings, self.watch = settings, watch
        self.generator = settings.generator
        self.names = list(dict.fromkeys(settings.backends or names))
        self.outcome = Outcome(settings)
        self.tasks: deque[messages.Task[Any]] = deque()

    def run(self) -> Outcome:
        """Until all is done, time is up, or Ctrl-C: what was found is kept then."""
        try:
            with open_pool(self.settings) as pool:
                self.run_in(pool)
        except KeyboardInterrupt:
            self.outcome.is_cut = self.outcome.is_interrupted = True
            for pair in self.outcome.pairs:
                pair.stop()
        self.outcome.seconds = time.monotonic() - self.outcome.started
        return self.outcome

    def run_in(self, pool: Pool) -> Outcome:
        """The same in a pool that is there already."""
        self.declare(pool)
        self.plan()
        for task, event in pool.run(self.tasks, self.tick):
            if isinstance(task, messages.SliceTask):
                self.handle_slice(task, event)
            else:
                self.handle_ledger(task.backend, event)
        for pair in self.outcome.pairs:
            self.relate(pool, pair)
        return self.outcome

    def declare(self, pool: Pool) -> None:
        """Asks each backend for its declaration."""
        declared: dict[str, messages.Declared] = {}
        for task, event in pool.run(deque(map(messages.Declare, self.names)), self.tick):
            if isinstance(event, messages.Declared):
                declared[task.backend] = event
            elif isinstance(event, messages.Refused):
                self.outcome.unavailable[task.backend] = event.why
            elif isinstance(event, messages.Stopped):
                self.outcome.dead[task.backend] = event.describe()
        for name in self.names:
            if name in declared:
                self.outcome.versions.update(declared[name].versions)
                self.outcome.pairs += list_pairs(name, declared[name], self.settings)

    def plan(self) -> None:
        """Known divergences first, then the slices of all pairs in turn."""
        settings, pairs = self.settings, self.outcome.pairs
        backends = dict.fromkeys(pair.backend for pair in pairs)
        self.tasks.extend(map(messages.RunLedger, backends))
        for number, programs in settings.list_slices():
            for pair in pairs:
                count = -(-programs // pair.share)
                pair.wanted += count
                task = messages.RandomTask(
                    *pair.key,
                    number,
                    generator=self.generator,
                    seed=settings.seed,
                    programs=count,
                )
                self.tasks.append(task)

    def tick(self) -> None:
        outcome, seconds = self.outcome, self.settings.seconds
        if seconds is not None and time.monotonic() - outcome.started > seconds:
            outcome.is_cut = outcome.is_cut or bool(self.tasks)
            self.tasks.clear()
        self.watch(outcome)

    def handle_ledger(self, backend: str, event: messages.Event) -> None:
        """A known divergence must still be there, and be the same."""
        for pair in self.outcome.pairs:
            if pair.backend != backend:
                continue
            if isinstance(event, messages.Stopped):
                pair.errors.append(f"its ledger could not be run: {event.why}")
                continue
            assert isinstance(event, messages.LedgerRun)
            for entry in event.entries:
                if entry.kind == pair.kind and entry.got == entry.signature:
                    pair.known += 1
                elif entry.kind == pair.kind:
                    got = entry.got or "its program agrees now"
                    pair.outdated.append(f"{entry.id}: expected {entry.signature}; {got}")

    def handle_slice(self, task: messages.SliceTask, event: messages.Event) -> None:
        pair = self.find_pair(task)
        if isinstance(event, messages.Progress):
            pair.running[task.number] = event.counts
            pair.reached.update(event.reached)
            return
        if isinstance(event, messages.Found):
            self.keep(pair, task, event)
            return
        counts = pair.running.pop(task.number, None)
        if isinstance(event, messages.SliceDone):
            pair.add(task.number, event)
        elif isinstance(event, messages.Stopped):
            if counts is not None:
                pair.include(counts)
            blamed = event.blame()
            if blamed is None:
                pair.errors.append(event.describe())
            else:
                self.keep_crash(pair, task, *blamed)
        if pair.crashes >= MAX_CRASHES or pair.errors or pair.is_unwritten:
            self.leave_out(pair)

    def relate(self, pool: Pool, pair: Pair) -> None:
        """Notes which failures of a pair are likely one bug."""
        related = [one for one in pair.failures if not one.divergence.is_error]
        if len(related) < 2:
            return
        programs = [failure.program.to_json() for failure in related]
        signatures = [failure.signature for failure in related]
        answer = pool.call(messages.Cluster(pair.backend, programs, signatures))
        if isinstance(answer, messages.Stopped):
            return
        for place, first in answer.likely:
            if max(place, first) < len(related):
                later = pair.failures.index(related[place])
                likely = related[first].signature
                pair.failures[later] = replace(related[place], likely=likely)

    def find_pair(self, task: messages.SliceTask) -> Pair:
        return next(pair for pair in self.outcome.pairs if pair.owns(task))

    def leave_out(self, pair: Pair) -> None:
        """No more slices of a pair whose backend does not answer."""
        rest = [task for task in self.tasks if not pair.owns(task)]
        self.tasks.clear()
        self.tasks.extend(rest)

    def keep(self, pair: Pair, task: messages.SliceTask, event: messages.Found) -> None:
        """Saves a program of a slice, unless another slice has found it."""
        program = event.parse()
        after = {"programs": event.programs, "seconds": event.seconds}
        self.save(pair, task, program, event.divergence, after)
        slices = [one for one in self.tasks if isinstance(one, messages.SliceTask)]
        for waiting in slices:
            if waiting.backend == pair.backend:
                waiting.known.append(event.divergence.get_signature(program))

    def save(
        self,
        pair: Pair,
        task: messages.SliceTask,
        program: Program,
        divergence: Divergence,
        after: dict[str, float] | None = None,
    ) -> None:
        """Saves a failure, in the place of one with the same signature that ranks worse.

        Args:
            pair: gets the failure.
            task: found it.
            program: diverges, as `divergence` says.
            divergence: the first one of the program.
            after: programs and seconds of the slice until it was found.
        """
        signature = divergence.get_signature(program)
        before = [failure for failure in pair.failures if failure.signature == signature]
        rank = get_rank(program)
        if any(get_rank(failure.program) <= rank for failure in before):
            return
        found = {
            "front": self.generator,
            "seed": self.settings.seed,
            "shard": task.number,
        }
        place = self.settings.failures, program, divergence, pair.backend
        try:
            saved = save(*place, pair.environment, {"found": found | (after or {})})
        except OSError as error:
            words = f"step {divergence.step}: {divergence.message}"
            pair.errors.append(f"{signature} could not be saved ({error}): {words}")
            return
        for failure in before:
            pair.failures.remove(failure)
            failure.path.unlink(missing_ok=True)
        pair.failures.append(saved)

    def keep_crash(
        self,
        pair: Pair,
        task: messages.SliceTask,
        program: Program,
        divergence: Divergence,
    ) -> None:
        """Saves the program at which the worker ended or stood still, and shortens it in
        processes of its own."""
        pair.crashes += 1
        signature = divergence.get_signature(program)
        if any(failure.signature == signature for failure in pair.failures):
            return
        self.save(pair, task, program, divergence)
        with open_pool(self.settings, jobs=1, variables=BLOCKING) as pool:

            def fails(candidate: Program) -> bool:
                event = pool.call(messages.RunProgram(pair.backend, candidate.to_json()))
                return isinstance(event, messages.Died) and event.what == divergence.what

            if fails(program):
                program = Shrinker(program, fails, CRASH_SHRINK_SECONDS).shrink()
        last = max(0, len(program.ops) - 1)
        operation = program.ops[last]["op"] if program.ops else "open"
        divergence = replace(divergence, step=last, operation=operation)
        self.save(pair, task, program, divergence)


def list_pairs(
    name: str, declared: messages.Declared, settings: Settings
) -> Iterator[Pair]:
    place = declared.get_environment()
    for contract, kinds in declared.contracts.items():
        for kind, own in kinds.items():
            if not settings.kinds or kind in settings.kinds:
                unchecked = declared.unchecked.get(kind, [])
                yield Pair(name, contract, kind, own, place, declared.share, unchecked)
