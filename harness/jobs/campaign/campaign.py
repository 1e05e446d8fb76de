"""Runs the shards of a campaign that have no file yet, and combines the files of all
shards into an outcome.

If the process that starts the shards is killed, the running shards are lost, but no
finished shard.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import structs

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, LocalFolder
from lockstep.harness.jobs.campaign.runners import Runner, run_specs
from lockstep.harness.jobs.campaign.shard import Abandoned, Result, decode_result
from lockstep.harness.jobs.campaign.terms import (
    CAMPAIGN,
    SHARD,
    SHARDS,
    Spec,
    Terms,
    compare,
    describe_unwritable,
    read_terms,
    require_terms,
    require_version,
)
from lockstep.harness.jobs.failures import Failures, describe_stop, list_failure_files
from lockstep.harness.jobs.fold import (
    add_pairs,
    add_refusal,
    finishing,
    fold_ledger,
    fold_shard,
    require_kinds,
    show_failures,
)
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.workers import messages

FAILURES = "failures"


class Campaign:
    """A campaign: the results in its folder, and the results of running shards.

    Args:
        folder: the folder with the files of the campaign.
        terms: the settings of the campaign.

    Attributes:
        declared: backend → its first declaration.
        done: the names of the shards whose results are part of the outcome.
        damaged: the name of an invalid shard → the error.
        foreign: the name of a file that is no shard of the campaign → the error.
    """

    def __init__(self, folder: Folder, terms: Terms) -> None:
        root = folder.path if isinstance(folder, LocalFolder) else Path()
        self.folder, self.terms = folder, terms
        self.outcome = Outcome(terms.get_settings(Path(root, FAILURES)))
        self.failures = Failures(folder, f"{FAILURES}/")
        self.declared: dict[str, messages.Declared] = {}
        self.done: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.foreign: dict[str, str] = {}

    # --- its files ----------------------------------------------------------------------

    def load(self) -> Outcome:
        """Adds the results of the shards in the folder to the outcome."""
        names = self.folder.list(SHARDS)
        why = "is not a shard of this campaign"
        self.foreign = {name: f"{name}: {why}" for name in names if not is_shard(name)}
        for name, content in self.folder.read_all(filter(is_shard, names)):
            try:
                if isinstance(content, UsageError):
                    raise content
                self.add_result(decode_result(content, name))
            except Foreign as error:
                self.foreign[name] = str(error)
            except UsageError as error:
                self.damaged[name] = str(error)
        missing = [name for name in self.terms.backends if name not in self.declared]
        why = "no machine of the campaign has had it so far"
        self.outcome.unavailable.update(dict.fromkeys(missing, why))
        self.failures.read_unreported()
        show_failures(self.outcome, self.failures)
        self.count_wanted()
        self.outcome.is_cut = self.outcome.seconds < (self.terms.seconds or 0)
        if self.terms.programs is not None:
            self.outcome.is_cut = next(self.iter_missing(), None) is not None
        return self.outcome

    def add_result(self, result: Result) -> None:
        """Adds the result of a finished shard to the outcome. Raises UsageError if it
        belongs to another campaign."""
        spec = result.spec
        declared, *events = result.events
        assert isinstance(declared, messages.Declared)
        is_own = self.terms.owns(spec, declared.share)
        if is_own:
            self.add_declared(spec.task.backend, declared)
        if not is_own or not self.list_pairs(spec.task):
            raise Foreign(f"{spec.name}: belongs to another campaign")
        self.done.add(spec.name)
        self.outcome.seconds = max(self.outcome.seconds, result.seconds)
        for event in events:
            self.fold(spec.task, event, declared)

    def add_declared(self, backend: str, event: messages.Declared) -> None:
        """Adds the pairs of a backend. Raises UsageError if the declaration has
        changed."""
        before = self.declared.setdefault(backend, event)
        if before is event:
            add_pairs(self.outcome, backend, event)
        elif before.contracts != event.contracts:
            raise UsageError(
                f"{backend}: declares other kinds or operations than when the campaign in"
                f" {self.folder.location} began; start another campaign"
            )

    def list_pairs(self, task: messages.Task[Any]) -> list[Pair]:
        """Lists the pairs of a task."""
        return [
            pair
            for pair in self.outcome.pairs
            if pair.owns(task)
            or (isinstance(task, messages.RunLedger) and pair.backend == task.backend)
        ]

    def fold(
        self, task: messages.Task[Any], event: messages.Event, declared: messages.Declared
    ) -> None:
        """Adds an event of a shard to the outcome. declared: the backend's declaration on
        the machine that ran the shard."""
        if isinstance(task, messages.RunLedger):
            fold_ledger(self.outcome, task.backend, event)
            return
        assert isinstance(task, messages.RandomTask)
        (pair,) = self.list_pairs(task)
        about = pair, task, event, declared.get_environment()
        fold_shard(self.outcome, self.failures, *about)
        pair.crashes += event.crashes if isinstance(event, Abandoned) else 0

    def iter_missing(self) -> Iterator[Spec]:
        """Yields the shards that have no file and whose pair can run, until the time
        is over."""
        ledgers = [name for name, event in self.declared.items() if event.has_ledger]
        for spec in self.terms.iter_specs(self.outcome.pairs, ledgers):
            useless = [pair.errors or pair.is_unwritten for pair in self.outcome.pairs]
            if all(useless) or self.is_spent():
                return
            pair = self.list_pairs(spec.task)[0]
            if spec.name not in self.done and not (pair.errors or pair.is_unwritten):
                yield spec

    def is_spent(self) -> bool:
        seconds = time.monotonic() - self.outcome.started
        return self.terms.seconds is not None and seconds >= self.terms.seconds

    def count_wanted(self) -> None:
        """Sets the planned number of programs of each pair."""
        is_fixed = self.terms.programs is not None
        for pair in self.outcome.pairs:
            pair.wanted = 0 if is_fixed else 1  # a pair that never ran does not agree
        for spec in self.terms.iter_specs(self.outcome.pairs, ()) if is_fixed else ():
            assert isinstance(spec.task, messages.RandomTask)
            (pair,) = self.list_pairs(spec.task)
            pair.wanted += spec.task.programs

    # --- it runs ------------------------------------------------------------------------

    def run(
        self,
        open_runner: Callable[[], Runner],
        names: Sequence[str],
        watch: Callable[[Outcome], None] = lambda _: None,
    ) -> Outcome:
        """Runs until all shards are finished, the time is over, or Ctrl-C. Results are
        kept.

        Args:
            open_runner: opens the runner of the shards.
            names: the registered backends, if the settings name none.
            watch: called with the outcome whenever it may have changed.

        Raises:
            UsageError: nothing can be run.
        """
        self.load()
        outcome = self.outcome
        outcome.is_cut, outcome.started = False, time.monotonic() - outcome.seconds
        with finishing(outcome), closing(open_runner()) as runner:
            try:
                self.declare(runner, self.terms.backends or names)
                self.work(runner, lambda: watch(outcome))
            except OSError as error:
                outcome.unwritten = describe_unwritable(self.folder, error)
                outcome.is_cut = True
        return outcome

    def declare(self, runner: Runner, names: Sequence[str]) -> None:
        """Requests the declaration of each backend. Later declarations must equal the
        first."""
        self.outcome.unavailable.clear()
        specs = [self.terms.make_spec(messages.Declare(name)) for name in names]
        for spec, event in run_specs(runner, iter(specs), lambda: None):
            if isinstance(event, messages.Declared):
                self.add_declared(spec.task.backend, event)
            elif isinstance(event, messages.Stopped):
                add_refusal(self.outcome, spec.task.backend, event)
        order = {name: index for index, name in enumerate(names)}
        self.outcome.pairs.sort(key=lambda pair: order.get(pair.backend, len(order)))
        require_kinds(self.outcome, names)

    def work(self, runner: Runner, watch: Callable[[], None]) -> None:
        """Runs the unfinished shards, until the time is over."""
        self.count_wanted()
        self.failures.write()
        events: defaultdict[str, list[Any]] = defaultdict(list)
        for spec, event in run_specs(runner, self.iter_missing(), watch):
            if isinstance(event, messages.Declared):  # the first event of each try
                self.add_declared(spec.task.backend, event)
                events[spec.name] = [event]
                continue
            if isinstance(event, messages.Stopped) and not is_end(event):
                self.note_error(spec, event)
                continue
            if not isinstance(event, messages.Progress):
                known = events[spec.name]
                if isinstance(event, messages.Found) and event.original is not None:
                    # Its divergence may have thousands of tokens.
                    known[:] = filter(event.is_other, known)
                known.append(event)
            if is_end(event):
                self.write_result(spec, events.pop(spec.name))
            else:
                self.fold(spec.task, event, events[spec.name][0])

    def write_result(self, spec: Spec, events: list[Any]) -> None:
        """Writes the file of a finished shard, and folds its last event. Raises
        OSError."""
        seconds = round(time.monotonic() - self.outcome.started, 2)
        result = Result(spec, seconds, events)
        write = self.folder.replace if spec.name in self.damaged else self.folder.put
        write(spec.name, result.encode())
        self.done.add(spec.name)
        self.fold(spec.task, events[-1], events[0])

    def note_error(self, spec: Spec, event: messages.Stopped) -> None:
        """Adds the error of a shard without a result; its pair runs no more shards."""
        for pair in self.list_pairs(spec.task):
            failures = self.outcome.settings.failures
            pair.errors.append(describe_stop(failures, event, pair.backend))
            pair.stop()


class Foreign(UsageError):
    """A shard belongs to another campaign."""


def is_shard(name: str) -> bool:
    return SHARD.fullmatch(name) is not None


def is_end(event: messages.Event) -> bool:
    """Returns whether an event is the last event of a valid shard."""
    if isinstance(event, Abandoned):
        return event.crashes > 0
    return isinstance(event, messages.Answer)


# --- its folder -------------------------------------------------------------------------


def begin(folder: Folder, terms: Terms) -> None:
    """Writes the settings of a campaign, unless the folder already has equal settings.

    Raises:
        UsageError: the folder has other contents, or cannot be written.
    """
    before = read_terms(folder)
    if before is None and folder.list():
        raise UsageError(
            f"{folder.location}: has files, but no campaign; choose an empty folder"
        )
    if before is None:
        content = (json.dumps(structs.asdict(terms), indent=1) + "\n").encode()
        try:
            folder.replace(CAMPAIGN, content)
        except OSError as error:
            raise UsageError(describe_unwritable(folder, error)) from None
    elif (why := compare(before, terms)) is not None:
        raise UsageError(
            f"{folder.location}: holds another campaign: {why}; choose another folder, or"
            " go on with `lockstep campaign resume`"
        )


def merge(target: Folder, sources: Sequence[Folder]) -> Campaign:
    """Copies the shards of campaigns with equal settings to a target campaign, and loads
    it.

    The folder of the target may not exist yet.

    Raises:
        UsageError: a folder has no campaign, or its campaign has other settings.
    """
    parts = [(source, require_terms(source)) for source in sources]
    whole = structs.replace(read_terms(target) or parts[0][1], shard=None)
    for folder, terms in parts:
        require_version(folder.location, terms)
        why = compare(whole, structs.replace(terms, shard=None))
        if why is not None:
            raise UsageError(f"{folder.location}: belongs to another campaign: {why}")
    begin(target, whole)
    campaign = Campaign(target, whole)
    try:
        for source in sources:
            shards = filter(is_shard, source.list(SHARDS))
            names = [*shards, *list_failure_files(source, FAILURES)]
            for name, content in source.read_all(names):
                if isinstance(content, UsageError):
                    raise content
                target.put(name, content)
        campaign.load()
        campaign.failures.write()
    except OSError as error:
        raise UsageError(describe_unwritable(target, error)) from None
    return campaign
