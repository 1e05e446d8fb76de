"""The job of `lockstep check`: every chosen backend and kind against the reference."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.shrink import Clock, Shrinker, Shrunk
from lockstep.harness.jobs.answers import compare_backends
from lockstep.harness.jobs.causes import number_causes
from lockstep.harness.jobs.fold import add_pairs, fold_counts, fold_ledger, require_kinds
from lockstep.harness.jobs.groups import Key, group_pairs
from lockstep.harness.jobs.outcome import (
    Failure,
    Outcome,
    Pair,
    Settings,
    choose_kept,
    describe_stop,
    make_failure,
    save,
    save_agreed,
)
from lockstep.harness.programs.corpus import open_corpus
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import Divergence, Flaky, Program, parse_program
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Shown
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
    limits = settings.step_seconds, settings.start_seconds, settings.strict
    folder = settings.failures / RUNNING
    return Pool(jobs or settings.jobs, folder, *limits, variables, settings.unsupported)


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


class Check:
    """Plans the slices, hands them to a pool, and gathers what comes back.

    Args:
        settings: what the user chose.
        names: the registered backends, if the settings name none.
        watch: is called with the outcome whenever it may have changed.

    Attributes:
        tasks: wait for a worker.
        later: by the key of a pair, the slices that it may end without.
        unfinished: how many slices of each pair are not over, those of `later` aside.
        beside: by the key of a pair, those that run its programs beside it.
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
        self.later: dict[Key, deque[messages.RandomTask]] = {}
        self.unfinished: Counter[Key] = Counter()
        self.beside: dict[Key, list[Pair]] = {}
        self.corpus = open_corpus(settings.corpus) if settings.corpus else None
        self.ledgers: set[str] = set()

    def run(self) -> Outcome:
        """Until all is done, time is up, or Ctrl-C: what was found is kept then."""
        try:
            with open_pool(self.settings) as pool:
                self.run_in(pool)
        except KeyboardInterrupt as interrupt:
            self.outcome.stop(interrupt)
        except UsageError as error:
            self.give_up(error)
        self.finish_corpus()
        self.outcome.seconds = time.monotonic() - self.outcome.started
        return self.outcome

    def finish_corpus(self) -> None:
        """Writes the corpus; if that fails, the outcome says so."""
        try:
            self.save_corpus()
        except (OSError, UsageError) as error:
            assert self.corpus is not None
            place, why = self.corpus.folder.place, getattr(error, "strerror", None)
            self.outcome.unwritten = f"{place}: cannot be written: {why or error}"

    def save_corpus(self) -> None:
        """Raises OSError."""
        if self.corpus is not None:
            self.outcome.corpus = self.corpus.save()

    def give_up(self, error: UsageError) -> None:
        """No worker can be started any more: what was done counts.

        Raises:
            UsageError: nothing was done.
        """
        pairs = self.outcome.pairs
        if not any(pair.steps or pair.running or pair.failures for pair in pairs):
            raise error
        for pair in pairs:
            pair.stop()
            if pair.programs < pair.wanted:
                pair.errors.append(str(error))

    def run_in(self, pool: Pool) -> Outcome:
        """The same in a pool that is there already."""
        self.declare(pool)
        require_kinds(self.outcome, self.names)
        self.plan()
        self.tick()  # time may be up once all backends are imported
        for task, event in pool.run(self.tasks, self.tick):
            self.handle_event(task, event)
        number_causes(pool, self.outcome.pairs)
        compare_backends(pool, self.outcome.pairs, self.tick)
        return self.outcome

    def handle_event(self, task: messages.Task[Any], event: messages.Event) -> None:
        if isinstance(task, messages.SliceTask):
            self.handle_slice(task, event)
        else:
            fold_ledger(self.outcome, task.backend, event)

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
                add_pairs(self.outcome, name, declared[name])
                if declared[name].has_ledger:
                    self.ledgers.add(name)
        self.beside = group_pairs(self.outcome.pairs, declared)
        for (lead, *_), others in self.beside.items():
            for pair in others:
                pair.programs_of = lead

    def plan(self) -> None:
        """Known divergences first, then the slices of all pairs in turn."""
        self.plan_ledgers()
        self.plan_slices()

    def plan_ledgers(self) -> None:
        backends = dict.fromkeys(pair.backend for pair in self.outcome.pairs)
        ledgers = [name for name in backends if name in self.ledgers]
        self.tasks.extend(map(messages.RunLedger, ledgers))

    def plan_slices(self) -> None:
        """The slices of all pairs in turn; those that come later wait until then."""
        settings = self.settings
        beside = [other.key for others in self.beside.values() for other in others]
        pairs = [pair for pair in self.outcome.pairs if pair.key not in beside]
        self.later = {pair.key: deque() for pair in pairs}
        least = settings.least or settings.programs
        first = {pair.key: least * CONTRACTS[pair.contract].depth for pair in pairs}
        for number, programs in settings.list_slices():
            for pair in pairs:
                count = -(-programs // pair.share)
                group = self.get_group(pair)
                for one in group:
                    one.wanted += count
                task = messages.RandomTask(
                    *pair.key,
                    number,
                    generator=self.generator,
                    seed=settings.seed,
                    programs=count,
                    corpus=self.choose_corpus(pair, number),
                    beside={one.backend: {} for one in group[1:]},
                )
                if number * settings.slice < first[pair.key]:
                    self.hand_out(task)
                else:
                    self.later[pair.key].append(task)

    def get_group(self, pair: Pair) -> list[Pair]:
        """The pairs that run the programs of a pair, itself first."""
        return [pair, *self.beside.get(pair.key, ())]

    def hand_out(self, task: messages.RandomTask) -> None:
        self.tasks.append(task)
        self.unfinished.update(one.key for one in self.list_pairs(task))

    def go_on(self, pair: Pair) -> None:
        """Once all slices of a pair are over that were handed out: the next one, or the
        end. What is decided depends on their programs, not on the number of workers."""
        later = self.later.get(pair.key)
        if not later or self.unfinished[pair.key]:
            return
        group = self.get_group(pair)
        right = [one for one in group if not one.failures] or group
        if all(one.is_explored for one in right):
            for one in group:
                one.wanted -= sum(task.programs for task in later)
            later.clear()
        else:
            rare = dict.fromkeys(cell for one in right for cell in one.list_rare())
            self.hand_out(structs.replace(later.popleft(), rare=[*rare]))

    def choose_corpus(self, pair: Pair, number: int) -> list[messages.Document] | None:
        """The programs that a slice starts from; None if the user wants no corpus."""
        return None if self.corpus is None else self.corpus.choose(pair.kind, number)

    def tick(self) -> None:
        outcome, seconds = self.outcome, self.settings.seconds
        if seconds is not None and time.monotonic() - outcome.started > seconds:
            is_left = bool(self.tasks) or any(self.later.values())
            outcome.is_cut = outcome.is_cut or is_left
            self.tasks.clear()
            self.later.clear()
        self.watch(outcome)

    def handle_slice(self, task: messages.SliceTask, event: messages.Event) -> None:
        group = self.list_pairs(task)
        pair = group[0]
        if isinstance(event, messages.Beside):
            pair, event = group[event.side], event.inner
        if isinstance(event, messages.Progress):
            fold_counts(pair, task.number, event)
            return
        if isinstance(event, messages.Found):
            self.keep(pair, task, event)
            return
        if isinstance(event, messages.Agreed):
            self.keep_agreed(pair, event)
            return
        if isinstance(event, messages.Kept):
            if self.corpus is not None:
                self.corpus.add(event.parse(), event.cells)
            return
        if isinstance(event, messages.Stopped) and len(group) > 1:
            self.run_alone(task, event.describe())  # each has to show itself
            return
        fold_counts(pair, task.number, event)
        if isinstance(event, messages.SliceDone):
            found = pair.signatures.items()
            self.tell(pair, {name: Shown(count) for name, count in found})
        elif isinstance(event, messages.Stopped):
            blamed = event.blame()
            if blamed is None:
                pair.errors.append(self.describe(event, pair.backend))
            else:
                self.keep_crash(pair, task, *blamed)
        self.unfinished[pair.key] -= 1
        if pair.crashes >= MAX_CRASHES or pair.errors or pair.is_unwritten:
            self.leave_out(pair)
        self.go_on(pair)

    def describe(self, event: messages.Stopped, backend: str) -> str:
        return describe_stop(self.settings.failures, event, backend)

    def find_pair(self, task: messages.SliceTask) -> Pair:
        return next(pair for pair in self.outcome.pairs if pair.owns(task))

    def list_pairs(self, task: messages.SliceTask) -> list[Pair]:
        """The pairs whose programs a task runs, in the order of its backends."""
        own = {pair.key: pair for pair in self.outcome.pairs}
        return [own[name, task.contract, task.kind] for name in task.knowing]

    def run_alone(self, task: messages.SliceTask, why: str) -> None:
        """Hands a slice that had to end out again, for each of its backends alone: the
        one whose turn it was need not be the one that is wrong."""
        assert isinstance(task, messages.RandomTask)
        group = self.list_pairs(task)
        self.part(group[0])
        for pair, alone in zip(group, task.list_alone(), strict=True):
            others = ", ".join(one.backend for one in group if one is not pair)
            pair.parted = f"a slice beside {others} had to end: {why}"
            if task.number not in pair.digests:  # or it was done before
                self.tasks.append(alone)
            self.go_on(pair)

    def part(self, pair: Pair) -> None:
        """Lets a pair and those beside it run alone what they have not begun."""
        key = pair.programs_of or pair.backend, pair.contract, pair.kind
        lead = next(one for one in self.outcome.pairs if one.key == key)
        others = self.beside.pop(key, [])
        for one in others:
            one.programs_of = ""
        later = self.later.pop(key, deque())
        self.later |= {one.key: deque() for one in (lead, *others)}
        for alone in chain(*(task.list_alone() for task in later)):
            self.later[self.find_pair(alone).key].append(alone)
        waiting = list(self.tasks)
        self.tasks.clear()
        for each in waiting:
            if isinstance(each, messages.RandomTask) and lead.owns(each):
                self.tasks.extend(each.list_alone())
            else:
                self.tasks.append(each)

    def leave_out(self, pair: Pair) -> None:
        """No more tasks of a pair whose backend does not answer."""
        self.part(pair)
        self.later.pop(pair.key, None)
        rest = [task for task in self.tasks if not pair.owns(task)]
        self.tasks.clear()
        self.tasks.extend(rest)

    def keep(self, pair: Pair, task: messages.SliceTask, event: messages.Found) -> None:
        """Saves a program of a slice."""
        program = event.parse()
        after = {"programs": event.programs, "seconds": event.seconds}
        more: dict[str, Any] = {} if event.flaky is None else {"flaky": event.flaky}
        more |= {"states": event.states} if event.original else {}
        place = program, event.divergence, event.original
        self.save(pair, task, *place, {"found": after, **more})
        states = {program.digest(): event.states} if event.original else {}
        signature = event.divergence.get_signature(program)
        self.tell(pair, {signature: Shown(1, states)})

    def tell(self, pair: Pair, found: Mapping[str, Shown]) -> None:
        """Tells slices that wait which programs have shown a signature."""
        for task in chain(self.tasks, *self.later.values()):
            if isinstance(task, messages.SliceTask) and pair.backend in task.knowing:
                known = task.knowing[pair.backend]
                for signature, more in found.items():
                    shown = known.setdefault(signature, Shown())
                    shown.programs = max(shown.programs, more.programs)
                    shown.states.update(more.states)

    def keep_agreed(self, pair: Pair, event: messages.Agreed) -> None:
        """Saves a program that an entry of the ledger describes, and that agrees; one for
        each entry."""
        if event.entry in pair.agreed:
            return
        pair.agreed.add(event.entry)
        program = parse_program(event.program, "a program of the ledger")
        words = (
            f"{event.entry}: describes an operation that agrees: its `when` is too wide"
        )
        try:
            folder = self.settings.failures
            path = save_agreed(folder, program, event.entry, pair.backend)
        except OSError as error:
            document = json.dumps(program.to_json())
            pair.outdated.append(f"{words} (not saved: {error}): {document}")
        else:
            pair.outdated.append(f"{words}: {path}")

    def save(
        self,
        pair: Pair,
        task: messages.SliceTask,
        program: Program,
        divergence: Divergence,
        original: str | None = None,
        meta: Mapping[str, Any] = {},
    ) -> None:
        """Saves a failure, unless enough are kept that have its signature.

        Args:
            pair: gets the failure.
            task: found it.
            program: diverges, as `divergence` says.
            divergence: the first one of the program.
            original: the digest of the program that was made shorter; None for a program
                that was not, which is kept if it is the first of its signature.
            meta: for the file.
        """
        failure = self.describe_failure(pair, task, program, divergence, meta)
        is_known = any(one.signature == failure.signature for one in pair.failures)
        if original is None and is_known:
            return
        saved = save(failure)
        if saved.unsaved is None or not is_known:  # a longer one with a file is better
            self.choose_files(pair, saved, original)

    def choose_files(self, pair: Pair, new: Failure, original: str | None) -> None:
        """Chooses the failures that are kept of one signature, and removes the files of
        the others.

        Args:
            pair: gets the failure.
            new: has a file.
            original: the digest of the program that it replaces.
        """
        before = [one for one in pair.failures if one.signature == new.signature]
        kept = choose_kept(before, new, original)
        paths = [failure.path for failure in kept]
        for failure in (*before, new):
            if failure.path not in paths:
                self.remove_file(failure.path)
        others = [failure for failure in pair.failures if failure not in before]
        pair.failures[:] = [*others, *kept]

    def remove_file(self, path: Path) -> None:
        """Removes the file of a failure that is not kept."""
        path.unlink(missing_ok=True)

    def describe_failure(
        self,
        pair: Pair,
        task: messages.SliceTask,
        program: Program,
        divergence: Divergence,
        meta: Mapping[str, Any],
    ) -> Failure:
        """A failure with the content and the place of its file; see `save`."""
        found = {
            "front": self.generator,
            "seed": self.settings.seed,
            "shard": task.number,
            **meta.get("found", {}),
        }
        return make_failure(
            *(self.settings.failures, program, divergence, pair.backend),
            pair.environment,
            {**meta, "found": found},
            self.settings.get_options(),
        )

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
        original = program.digest()
        with open_pool(self.settings, jobs=1, variables=BLOCKING) as pool:
            small = shrink_crash(pool, pair.backend, program, divergence)
        flaky = {} if small.flaky is None else {"flaky": str(small.flaky)}
        self.save(pair, task, small.program, small.divergence, original, flaky)
        moved = small.divergence.get_signature(small.program) != signature
        if moved and small.divergence.what == divergence.what:
            self.forget(pair, signature)

    def forget(self, pair: Pair, signature: str) -> None:
        """Removes failures that have turned out to be of another signature."""
        for failure in [one for one in pair.failures if one.signature == signature]:
            pair.failures.remove(failure)
            self.remove_file(failure.path)
            with suppress(OSError):  # an earlier run has left more there
                failure.path.parent.rmdir()


def shrink_crash(
    pool: Pool,
    backend: str,
    program: Program,
    divergence: Divergence,
    seconds: float = CRASH_SHRINK_SECONDS,
    clock: Clock = time.monotonic,
) -> Shrunk:
    """Shortens a program that ends its process, or hangs, in processes of its own.

    First it runs alone, and what it does then counts: beside others, an error in a kernel
    (see `BLOCKING`) may have shown in a later step, or in another program.

    Args:
        pool: one worker, with the variables of `BLOCKING`.
        backend: runs the candidates.
        program: has ended a process.
        divergence: says how.
        seconds: when to stop, at the latest.
        clock: measures `seconds`.

    Returns:
        The shortest program; the given one, as flaky, if it ends nothing alone.
    """
    alone = find_end(pool, backend, program)
    if alone is None:
        return Shrunk(program, divergence, flaky=Flaky(0, 1))
    signature = alone.get_signature(program)
    latest = shown = alone

    def fails(candidate: Program) -> bool:
        nonlocal latest
        found = find_end(pool, backend, candidate)
        if found is None or found.get_signature(candidate) != signature:
            return False
        latest = found
        return True

    def cut(failing: Program) -> Program:
        nonlocal shown
        shown = latest  # of the program that is the best from now on
        return replace(failing, ops=failing.ops[: latest.step + 1])

    best = Shrinker(cut(program), fails, seconds, cut=cut, clock=clock).shrink()
    return Shrunk(best, shown)


def find_end(pool: Pool, backend: str, program: Program) -> Divergence | None:
    """Runs a program in a process; says how it ends or hangs, if it does."""
    event = pool.call(messages.RunProgram(backend, program.to_json()))
    blamed = event.blame() if isinstance(event, messages.Died) else None
    return None if blamed is None else blamed[1]
