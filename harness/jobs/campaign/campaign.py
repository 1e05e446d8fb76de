"""A campaign: shards that are not done are run; their files are folded into an outcome.

A shard counts when its file is there. A coordinator that is killed loses what was running
and nothing else.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, LocalFolder
from lockstep.harness.jobs.campaign.failures import FAILURES, Failures, list_failure_files
from lockstep.harness.jobs.campaign.runners import Runner, run_specs
from lockstep.harness.jobs.campaign.shard import ENDS, Abandoned, Shard, decode_shard
from lockstep.harness.jobs.campaign.terms import (
    SHARDS,
    Spec,
    Terms,
    compare,
    read_terms,
    require_terms,
    require_version,
    write_terms,
)
from lockstep.harness.jobs.fold import add_pairs, fold_counts, fold_ledger, require_kinds
from lockstep.harness.jobs.outcome import Outcome, Pair, describe_stop, make_failure
from lockstep.harness.workers import messages


class Campaign:
    """A campaign as its folder has it, and what is added while it runs.

    Args:
        folder: holds its files.
        terms: its settings.

    Attributes:
        declared: backend → its declaration.
        done: the names of the shards that count.
        waiting: shards that are read, and not counted.
        damaged: the name of a file that is not what it should be → why.
    """

    def __init__(self, folder: Folder, terms: Terms) -> None:
        root = folder.path if isinstance(folder, LocalFolder) else Path()
        self.folder, self.terms = folder, terms
        self.outcome = Outcome(terms.get_settings(Path(root, FAILURES)))
        self.failures = Failures(folder)
        self.declared: dict[str, messages.Declared] = {}
        self.done: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.waiting: list[Shard] = []

    # --- its files ----------------------------------------------------------------------

    def load(self) -> Outcome:
        """Adds the shards that the folder has."""
        for name, content in self.folder.read_all(self.folder.list(SHARDS)):
            try:
                if isinstance(content, UsageError):
                    raise content
                self.waiting.append(decode_shard(content, name))
            except UsageError as error:
                self.damaged[name] = str(error)
        self.add_declarations()
        self.add_shards()
        absent = [name for name in self.terms.backends if name not in self.declared]
        why = "no machine of the campaign has had it so far"
        self.outcome.unavailable.update(dict.fromkeys(absent, why))
        self.failures.read_left()
        self.failures.show(self.outcome)
        missing = [*self.count_missing()]
        is_spent = self.outcome.seconds >= (self.terms.seconds or 0)
        self.outcome.is_cut = bool(missing) if self.terms.programs else not is_spent
        return self.outcome

    def add_declarations(self) -> None:
        waiting, self.waiting = self.waiting, []
        for shard in waiting:
            if isinstance(shard.spec.task, messages.Declare):
                self.add_shard(shard)
            else:
                self.waiting.append(shard)

    def add_shards(self) -> None:
        """Adds the shards that are done; those of a backend whose declaration is damaged
        wait until it is declared again."""
        waiting, self.waiting = self.waiting, []
        for shard in waiting:
            if shard.spec.task.backend in self.declared:
                self.add_shard(shard)
            else:
                self.waiting.append(shard)

    def add_shard(self, shard: Shard) -> None:
        """Adds the events of a shard that is done, if it is one of this campaign."""
        spec, task = shard.spec, shard.spec.task
        is_random = isinstance(task, messages.RandomTask)
        has_pair = any(pair.owns(task) for pair in self.outcome.pairs)
        if spec != self.terms.make_spec(task) or (is_random and not has_pair):
            self.damaged[spec.name] = f"{spec.name}: belongs to another campaign"
            return
        self.done.add(spec.name)
        self.outcome.seconds = max(self.outcome.seconds, shard.seconds)
        for event in shard.events:
            self.fold(task, event, shard.environment)

    def fold(
        self,
        task: messages.Task[Any],
        event: messages.Event,
        environment: dict[str, Any],
    ) -> None:
        """Adds an event to the outcome."""
        if isinstance(task, messages.Declare):
            assert isinstance(event, messages.Declared)
            self.declared[task.backend] = event
            add_pairs(self.outcome, task.backend, event)
        elif isinstance(task, messages.RunLedger):
            fold_ledger(self.outcome, task.backend, event)
        elif isinstance(task, messages.RandomTask):
            pair = self.get_pair(task)
            if isinstance(event, messages.Found):
                self.add_found(task, event, environment)
            elif isinstance(event, messages.Agreed):
                message = self.failures.add_agreed(event, task.backend)
                pair.outdated += [] if message in pair.outdated else [message]
            else:
                fold_counts(pair, task.number, event)
                pair.crashes += event.crashes if isinstance(event, Abandoned) else 0

    def add_found(
        self,
        task: messages.RandomTask,
        event: messages.Found,
        environment: dict[str, Any],
    ) -> None:
        meta: dict[str, Any] = {
            "found": {
                "front": task.generator,
                "seed": task.seed,
                "shard": task.number,
                "programs": event.programs,
                "seconds": event.seconds,
            }
        }
        meta |= {} if event.flaky is None else {"flaky": event.flaky}
        meta |= {"states": event.states} if event.original else {}
        settings, program = self.outcome.settings, event.parse()
        about = program, event.divergence, task.backend, environment, meta
        failure = make_failure(settings.failures, *about, settings.get_options())
        self.failures.add(failure, event.original)

    def remove_damaged(self, names: Iterable[str]) -> None:
        for name in names:
            self.folder.take(name)

    # --- it runs ------------------------------------------------------------------------

    def list_specs(self) -> Iterator[Spec]:
        ledgers = [name for name, event in self.declared.items() if event.has_ledger]
        return self.terms.iter_specs(self.outcome.pairs, ledgers)

    def count_missing(self) -> Iterator[Spec]:
        """Iterates over the shards that are not done, if their number is fixed; counts
        the programs that each pair is to run."""
        if self.terms.programs is None:
            for pair in self.outcome.pairs:
                pair.wanted = 1  # one that never ran does not agree
            return
        for pair in self.outcome.pairs:
            pair.wanted = 0
        for spec in self.list_specs():
            if isinstance(spec.task, messages.RandomTask):
                self.get_pair(spec.task).wanted += spec.task.programs
            if spec.name not in self.done:
                yield spec

    def get_pair(self, task: messages.RandomTask) -> Pair:
        return next(pair for pair in self.outcome.pairs if pair.owns(task))

    def run(
        self,
        open_runner: Callable[[], Runner],
        names: Sequence[str],
        watch: Callable[[Outcome], None] = lambda _: None,
    ) -> Outcome:
        """Runs until all is done, the time is over, or Ctrl-C: what was done is kept.

        Args:
            open_runner: opens what runs the shards.
            names: the registered backends, if the settings name none.
            watch: is called with the outcome whenever it may have changed.

        Raises:
            UsageError: nothing can be run.
        """
        self.load()
        outcome = self.outcome
        outcome.is_cut, outcome.started = False, time.monotonic() - outcome.seconds
        try:
            work = Work(self, open_runner(), lambda: watch(outcome))
            try:
                work.declare(self.terms.backends or list(names))
                work.run()
            finally:
                work.runner.close()
        except KeyboardInterrupt as interrupt:
            outcome.stop(interrupt)
        except OSError as error:
            outcome.unwritten = describe_unwritable(self.folder, error)
            outcome.is_cut = True
        outcome.seconds = time.monotonic() - outcome.started
        return outcome


class Work:
    """The part of a campaign that runs here and now.

    Attributes:
        events: of the shards that run.
        environments: of the same: where it runs.
    """

    def __init__(
        self, campaign: Campaign, runner: Runner, watch: Callable[[], None]
    ) -> None:
        self.campaign, self.runner, self.watch = campaign, runner, watch
        self.outcome, self.specs = campaign.outcome, deque[Spec]()
        self.events: defaultdict[str, list[Any]] = defaultdict(list)
        self.environments: dict[str, dict[str, Any]] = {}

    def declare(self, names: Sequence[str]) -> None:
        """Asks for the declaration of each backend; the first one counts."""
        campaign, outcome = self.campaign, self.outcome
        outcome.unavailable.clear()
        damaged = [*campaign.damaged]
        campaign.remove_damaged(damaged)
        specs = [campaign.terms.make_spec(messages.Declare(name)) for name in names]
        for spec, event in run_specs(self.runner, deque(specs), self.watch):
            backend = spec.task.backend
            if isinstance(event, messages.Refused):
                outcome.unavailable[backend] = event.why
            elif isinstance(event, messages.Stopped):
                outcome.dead[backend] = event.describe()
            elif isinstance(event, messages.Declared):
                self.require_same(backend, event)
                if spec.name not in campaign.done:
                    self.finish(spec, [event], event.get_environment())
        order = {name: index for index, name in enumerate(names)}
        outcome.pairs.sort(key=lambda pair: order[pair.backend])
        require_kinds(outcome, names)
        campaign.add_shards()
        campaign.remove_damaged(campaign.damaged.keys() - damaged)
        campaign.failures.show(outcome)

    def require_same(self, backend: str, event: messages.Declared) -> None:
        before = self.campaign.declared.get(backend, event)
        if before.contracts != event.contracts:
            raise UsageError(
                f"{backend}: declares other kinds or operations than when the campaign in"
                f" {self.campaign.folder.place} began; start another campaign"
            )

    def run(self) -> None:
        """Runs the shards that are not done, as long as there is time."""
        self.campaign.failures.write()
        missing = self.iter_missing()
        self.fill(missing)
        try:
            for spec, event in run_specs(
                self.runner, self.specs, lambda: self.fill(missing)
            ):
                self.handle(spec, event)
        except UsageError as error:
            self.give_up(error)

    def iter_missing(self) -> Iterator[Spec]:
        campaign = self.campaign
        fixed = [*campaign.count_missing()]
        for spec in fixed if campaign.terms.programs else campaign.list_specs():
            if all(pair.errors or pair.is_unwritten for pair in self.outcome.pairs):
                return
            pairs = [pair for pair in self.outcome.pairs if pair.owns(spec.task)]
            is_useless = any(pair.errors or pair.is_unwritten for pair in pairs)
            if spec.name not in campaign.done and not is_useless:
                yield spec

    def fill(self, missing: Iterator[Spec]) -> None:
        """Keeps enough shards waiting."""
        seconds = self.campaign.terms.seconds
        if seconds is None or time.monotonic() - self.outcome.started < seconds:
            while len(self.specs) < self.runner.count():
                spec = next(missing, None)
                if spec is None:
                    break
                self.specs.append(spec)
        else:
            self.specs.clear()
        self.watch()

    def handle(self, spec: Spec, event: messages.Event) -> None:
        campaign, name = self.campaign, spec.name
        if isinstance(event, messages.Declared):  # the first event of a shard
            self.require_same(spec.task.backend, event)
            self.environments[name] = event.get_environment()
            self.events[name].clear()
            return
        if isinstance(event, messages.Found | messages.Agreed):
            self.events[name].append(event)
        elif isinstance(event, ENDS) and (
            not isinstance(event, Abandoned) or event.crashes
        ):
            events = [*self.events.pop(name, ()), event]
            self.finish(spec, events, self.environments.pop(name))
            return
        elif isinstance(event, messages.Stopped):
            self.note_error(spec, event)
            return
        campaign.fold(spec.task, event, self.environments[name])
        if not isinstance(event, messages.Progress):
            self.write_failures()

    def finish(self, spec: Spec, events: list[Any], environment: dict[str, Any]) -> None:
        """Writes the file of a shard; from then on it counts. Raises OSError."""
        campaign = self.campaign
        seconds = round(time.monotonic() - self.outcome.started, 2)
        content = Shard(spec, environment, seconds, drop_shrunk(events)).encode()
        campaign.folder.put(spec.name, content)
        campaign.done.add(spec.name)
        campaign.fold(spec.task, events[-1], environment)

    def note_error(self, spec: Spec, event: messages.Stopped) -> None:
        """A shard has come to nothing, and no other of its pair is tried."""
        task, failures = spec.task, self.outcome.settings.failures
        for pair in self.outcome.pairs:
            if pair.owns(task) or (
                isinstance(task, messages.RunLedger) and pair.backend == task.backend
            ):
                pair.errors.append(describe_stop(failures, event, pair.backend))
                fold_counts(pair, getattr(task, "number", -1), event)
        useless = [pair for pair in self.outcome.pairs if pair.errors]
        for waiting in [*self.specs]:
            if any(pair.owns(waiting.task) for pair in useless):
                self.specs.remove(waiting)

    def write_failures(self) -> None:
        """Writes the failures that are chosen now. Raises OSError."""
        try:
            self.campaign.failures.write()
        except OSError as error:
            self.campaign.failures.show(self.outcome, error.strerror or str(error))
            raise
        self.campaign.failures.show(self.outcome)

    def give_up(self, error: UsageError) -> None:
        """No shard can be run any more: what was done counts. Raises UsageError if
        nothing was."""
        pairs = self.outcome.pairs
        if not any(pair.steps or pair.running or pair.failures for pair in pairs):
            raise error
        for pair in pairs:
            pair.stop()
            pair.errors.append(str(error))
        self.outcome.is_cut = True


def drop_shrunk(events: list[Any]) -> list[Any]:
    """The events without the programs that were made shorter: their divergences may have
    thousands of tokens."""
    originals = {getattr(event, "original", None) for event in events} - {None}
    return [
        event
        for event in events
        if not isinstance(event, messages.Found)
        or event.original is not None
        or event.parse().digest() not in originals
    ]


# --- its folder -------------------------------------------------------------------------


def begin(folder: Folder, terms: Terms) -> None:
    """Writes the settings of a campaign, unless the folder has the same already.

    Raises:
        UsageError: it holds something else.
    """
    before = read_terms(folder)
    if before is None:
        if folder.list():
            raise UsageError(f"{folder.place}: has files, and no campaign")
        try:
            write_terms(folder, terms)
        except OSError as error:
            raise UsageError(describe_unwritable(folder, error)) from None
        before = require_terms(folder)
    why = compare(before, terms)
    if why is not None:
        raise UsageError(
            f"{folder.place}: holds another campaign: {why}; choose another folder, or go"
            " on with `lockstep campaign resume`"
        )


def merge(target: Folder, sources: Sequence[Folder]) -> Campaign:
    """Copies to a campaign the shards of others with the same settings, and loads it.

    The target may be a folder that is not there yet.

    Raises:
        UsageError: a folder is not a campaign, or one with other settings.
    """
    before = read_terms(target)
    if before is None and target.list():
        raise UsageError(f"{target.place}: has files, and no campaign")
    parts = [(source, require_terms(source)) for source in sources]
    whole = replace_shard(before or parts[0][1])
    for folder, terms in parts:
        require_version(folder.place, terms)
        why = compare(whole, replace_shard(terms))
        if why is not None:
            raise UsageError(f"{folder.place}: is of another campaign: {why}")
    campaign = Campaign(target, whole)
    try:
        write_terms(target, whole)
        for source in sources:
            names = [*source.list(SHARDS), *list_failure_files(source)]
            for name, content in source.read_all(names):
                if isinstance(content, UsageError):
                    raise content
                target.put(name, content)
        campaign.load()
        campaign.failures.write()
    except OSError as error:
        raise UsageError(describe_unwritable(target, error)) from None
    return campaign


def replace_shard(terms: Terms) -> Terms:
    """The settings of the whole campaign that a part belongs to."""
    return structs.replace(terms, shard=None)


def describe_unwritable(folder: Folder, error: OSError) -> str:
    why = error.strerror or error
    return f"{folder.place}: cannot be written: {why}; nothing that was done is lost"
