"""Plans the shards of a job, and reacts to their events."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from msgspec import structs

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.folder import LocalFolder
from lockstep.harness.jobs.crash import BLOCKING, MAX_CRASHES, find_end, report_crash
from lockstep.harness.jobs.failures import Failure, Failures, describe_stop
from lockstep.harness.jobs.fold import fold_ledger, fold_shard
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.programs.ledger import drop_undeclared, list_undeclared
from lockstep.harness.programs.program import Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Shown

Key = tuple[str, str, str]
"""See `Pair.key`."""


@dataclass(frozen=True)
class Saved:
    """A failure of an earlier run, and the task that runs it again."""

    task: messages.RunProgram
    pair: Pair
    failure: Failure


class Shards:
    """Plans shards, and collects their results.

    Args:
        outcome: the outcome that the results are added to.
        groups: lists of pairs that run the same programs.
        watch: called with the outcome whenever it may have changed.

    Attributes:
        tasks: the tasks that wait for a worker.
        deferred: key of the first pair of a group → shards that may be skipped.
        unfinished: key of each pair → its number of unfinished shards, without
            `deferred`.
        groups: key of each pair → its group.
        saved: the failures of earlier runs.
    """

    def __init__(
        self,
        outcome: Outcome,
        groups: Iterable[Sequence[Pair]],
        watch: Callable[[Outcome], None],
    ) -> None:
        self.outcome, self.watch = outcome, watch
        self.settings = outcome.settings
        self.failures = Failures(LocalFolder(str(self.settings.failures)))
        self.tasks: deque[messages.Task[Any]] = deque()
        self.deferred: dict[Key, deque[messages.RandomTask]] = {}
        self.unfinished: Counter[Key] = Counter()
        self.groups: dict[Key, Sequence[Pair]] = {}
        self.saved: list[Saved] = []
        for group in groups:
            self.groups |= {pair.key: group for pair in group}
            for pair in group[1:]:
                pair.programs_of = group[0].backend

    def tick(self) -> None:
        """Removes the waiting tasks once the time limit is over. Called several times a
        second."""
        outcome, seconds = self.outcome, self.settings.seconds
        if seconds is not None and time.monotonic() - outcome.started > seconds:
            is_waiting = bool(self.tasks) or any(self.deferred.values())
            outcome.is_cut = outcome.is_cut or is_waiting
            self.tasks.clear()
            self.deferred.clear()
        self.watch(outcome)

    # --- what is to do ------------------------------------------------------------------

    def plan(self) -> None:
        """Plans the shards of all groups in turn; defers shards that may become
        unnecessary."""
        settings = self.settings
        leads = [pair for pair in self.outcome.pairs if self.groups[pair.key][0] is pair]
        least = settings.least or settings.programs
        certain = {lead.key: least * CONTRACTS[lead.contract].depth for lead in leads}
        self.deferred = {lead.key: deque() for lead in leads}
        for number, programs in settings.list_slices():
            for lead in leads:
                group = self.groups[lead.key]
                begin = number * settings.slice
                count = -(-(begin + programs) // lead.share) - -(-begin // lead.share)
                if not count:
                    continue
                for pair in group:
                    pair.wanted += count
                task = messages.RandomTask(
                    *lead.key,
                    number,
                    seed=settings.seed,
                    programs=count,
                    group={pair.backend: {} for pair in group[1:]},
                )
                if number * settings.slice < certain[lead.key]:
                    self.hand_out(task)
                else:
                    self.deferred[lead.key].append(task)

    def hand_out(self, task: messages.RandomTask) -> None:
        self.tasks.append(task)
        self.unfinished.update(pair.key for pair in self.list_pairs(task))

    def go_on(self, pair: Pair) -> None:
        """Starts or skips the deferred shards of a pair's group.

        Waits until all started shards of the pair are over, so that the decision depends
        on their programs and not on the number of workers. Skips all deferred shards if
        every deciding pair is explored, otherwise starts the next deferred shard.
        """
        deferred = self.deferred.get(pair.key)
        if not deferred or self.unfinished[pair.key]:
            return
        group = self.groups[pair.key]
        deciding = [member for member in group if not member.failures] or group
        if all(member.is_explored for member in deciding):
            for member in group:
                member.wanted -= sum(task.programs for task in deferred)
            deferred.clear()
        else:
            rare = dict.fromkeys(cell for member in deciding for cell in member.aim())
            self.hand_out(structs.replace(deferred.popleft(), rare=[*rare]))

    def list_pairs(self, task: messages.SliceTask) -> list[Pair]:
        """Lists the pairs whose programs a task runs, in the order of its backends."""
        pairs = {pair.key: pair for pair in self.outcome.pairs}
        return [pairs[name, task.contract, task.kind] for name in task.knowing]

    def split(self, pair: Pair) -> None:
        """Splits a group. Each pair then runs the unstarted shards of the group alone."""
        group = self.groups[pair.key]
        if len(group) == 1:
            return
        lead = group[0]
        for member in group:
            member.programs_of = ""
            self.groups[member.key] = [member]
        deferred = self.deferred.pop(lead.key, deque())
        for index, member in enumerate(group):
            alone = (task.list_alone()[index] for task in deferred)
            self.deferred[member.key] = deque(alone)
        waiting = (
            task.list_alone()
            if isinstance(task, messages.RandomTask) and lead.owns(task)
            else [task]
            for task in self.tasks
        )
        self.set_tasks(chain.from_iterable(waiting))

    def leave_out(self, pair: Pair) -> None:
        """Removes the tasks of a pair whose backend cannot run any more."""
        self.split(pair)
        self.deferred.pop(pair.key, None)
        self.set_tasks(task for task in self.tasks if not pair.owns(task))
        self.leave_out_saved(pair)

    def leave_out_saved(self, pair: Pair, signature: str | None = None) -> None:
        """Removes the reruns of earlier failures from the waiting tasks.

        Args:
            pair: the pair of the failures.
            signature: the signature of the failures; None for all failures of the pair.
        """
        chosen = {
            id(saved.task)
            for saved in self.saved
            if saved.pair is pair and signature in (None, saved.failure.signature)
        }
        previous = len(self.tasks)
        self.set_tasks(task for task in self.tasks if id(task) not in chosen)
        self.outcome.saved.left_out += previous - len(self.tasks)

    def set_tasks(self, tasks: Iterable[messages.Task[Any]]) -> None:
        """Replaces the waiting tasks. The pool keeps the same deque."""
        remaining = [*tasks]
        self.tasks.clear()
        self.tasks.extend(remaining)

    # --- what comes back ----------------------------------------------------------------

    def take(self, task: messages.Task[Any], event: messages.Event) -> None:
        """Adds an event to the outcome, and changes the waiting tasks accordingly."""
        if not isinstance(task, messages.SliceTask):
            fold_ledger(self.outcome, task.backend, event)
            return
        group = self.list_pairs(task)
        pair = group[0]
        if isinstance(event, messages.OfGroup):
            pair, event = group[event.index], event.inner
        elif isinstance(event, messages.Stopped) and len(group) > 1:
            self.run_alone(task, group, event)
            return
        fold_shard(self.outcome, self.failures, pair, task, event)
        if isinstance(event, messages.Found):
            digest = event.parsed.digest()
            states = {digest: event.states} if event.original else {}
            signature = event.divergence.get_signature(event.parsed)
            self.tell(pair, {signature: Shown(1, states)})
        elif isinstance(event, messages.SliceDone):
            counts = pair.signatures.items()
            self.tell(pair, {signature: Shown(count) for signature, count in counts})
            self.finish(pair)
        elif isinstance(event, messages.Stopped):
            self.blame(pair, task, event)
            self.finish(pair)

    def run_alone(
        self, task: messages.SliceTask, group: Sequence[Pair], event: messages.Stopped
    ) -> None:
        """Restarts a shard that ended early, once for each backend of its group. The
        backend that was running when the shard ended is not necessarily the faulty
        backend."""
        assert isinstance(task, messages.RandomTask)
        self.split(group[0])
        reason = event.describe()
        if isinstance(event, messages.Died) and event.running is not None:
            self.blame_beside(task, group, event, event.running)
        elif isinstance(event, messages.HarnessFailed):
            self.blame(group[0], task, event)
        for pair, alone in zip(group, task.list_alone(), strict=True):
            peers = ", ".join(member.backend for member in group if member is not pair)
            pair.parted = f"a slice beside {peers} had to end: {reason}"
            if task.number not in pair.digests:  # the pair has not completed this shard
                self.tasks.append(alone)
            self.go_on(pair)

    def blame_beside(
        self,
        task: messages.SliceTask,
        group: Sequence[Pair],
        event: messages.Died,
        program: Program,
    ) -> None:
        """Adds a program that ends a worker only beside other backends. If it also ends a
        worker on a single backend, the restarted shards find it."""
        with open_pool(self.settings, 1, BLOCKING) as pool:
            for pair in group:
                if find_end(pool, pair.backend, drop_undeclared(program, pair.declared)):
                    return
        side = program.meta.get("side")
        pair = next((pair for n, pair in enumerate(group) if n == side), group[0])
        beside = [member.backend for member in group if member is not pair]
        running = replace(program, meta={**program.meta, "beside": beside})
        running = drop_undeclared(running, pair.declared)
        self.blame(pair, task, structs.replace(event, running=running))

    def finish(self, pair: Pair) -> None:
        """Notes the end of a shard of a pair. Removes the tasks of a broken pair."""
        self.unfinished[pair.key] -= 1
        if pair.crashes >= MAX_CRASHES or pair.errors or pair.is_unwritten:
            self.leave_out(pair)
        self.go_on(pair)

    def blame(
        self, pair: Pair, task: messages.SliceTask, event: messages.Stopped
    ) -> None:
        """Adds the program that ended a worker as a failure. Adds an error if no
        program was running."""
        if not isinstance(event, messages.Died) or event.blame() is None:
            failures = self.settings.failures
            pair.errors.append(describe_stop(failures, event, pair.backend))
            return
        pair.crashes += 1
        for report in report_crash(
            pair.backend,
            event,
            lambda signature: self.failures.is_known(pair.backend, signature),
            lambda: open_pool(self.settings, 1, BLOCKING),
        ):
            fold_shard(self.outcome, self.failures, pair, task, report)

    def tell(self, pair: Pair, known: Mapping[str, Shown]) -> None:
        """Adds the programs that have shown a signature to the waiting tasks."""
        for task in chain(self.tasks, *self.deferred.values()):
            if isinstance(task, messages.SliceTask) and pair.backend in task.knowing:
                signatures = task.knowing[pair.backend]
                for signature, addition in known.items():
                    shown = signatures.setdefault(signature, Shown())
                    shown.programs = max(shown.programs, addition.programs)
                    shown.states.update(addition.states)


# --- which backends run the same programs -----------------------------------------------


def group_pairs(
    pairs: Sequence[Pair], declared: Mapping[str, messages.Declared]
) -> list[list[Pair]]:
    """Groups the pairs of a check that can run the same programs. In a group, each
    program is drawn once and run once on the reference.

    Args:
        pairs: the pairs of the check.
        declared: backend → its declaration.

    Returns:
        The groups. Programs are drawn for the first pair of a group.
    """
    groups: list[list[Pair]] = []
    for pair in sorted(pairs, key=lambda pair: -len(pair.declared.config)):
        for group in groups:
            if can_follow(pair, group[0], declared):
                group.append(pair)
                break
        else:
            groups.append([pair])
    return groups


def can_follow(pair: Pair, lead: Pair, declared: Mapping[str, messages.Declared]) -> bool:
    """Returns whether a pair can run exactly the programs that are drawn for `lead`.

    Both backends must have equal declarations, except for config fields that do not
    change results. Neither backend may have a ledger, because the programs of a backend
    with a ledger skip operations.
    """
    rules = CONTRACTS[pair.contract]
    if pair.key[1:] != lead.key[1:] or pair.share != lead.share:
        return False
    events = [declared[member.backend] for member in (pair, lead)]
    if any(event.has_ledger or event.name for event in events):
        return False  # skipped operations and driver timeouts are specific to a backend
    dropped = list_undeclared(rules, pair.declared)
    return events[0].dtypes == events[1].dtypes and (
        strip(pair.declared, dropped) == strip(lead.declared, dropped)
    )


def strip(declared: Kind, dropped: Container[str]) -> Kind:
    """Returns a declaration without the config fields `dropped` and without the fields
    about memory."""
    config = {
        name: values for name, values in declared.config.items() if name not in dropped
    }
    return replace(declared, config=config, inputs="copied", held=None)
