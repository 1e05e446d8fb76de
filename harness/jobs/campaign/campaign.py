"""Runs the shards of a campaign that have no file yet, and combines the files of all
shards into an outcome.

If the process that starts the shards is killed, the running shards are lost, but no
finished shard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import structs

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, LocalFolder
from lockstep.harness.jobs.campaign.runners import Runner, run_specs
from lockstep.harness.jobs.campaign.shard import (
    ENDS,
    Abandoned,
    Result,
    decode_result,
)
from lockstep.harness.jobs.campaign.terms import (
    CAMPAIGN,
    SHARDS,
    Spec,
    Terms,
    compare,
    describe_unwritable,
    read_terms,
    require_terms,
    require_version,
)
from lockstep.harness.jobs.failures import Failures, describe_stop
from lockstep.harness.jobs.fold import (
    add_pairs,
    add_refusal,
    finishing,
    fold_ledger,
    fold_shard,
    require_kinds,
)
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.workers import messages

FAILURES = "failures"


class Campaign:
    """A campaign: the results of its shards.

    Args:
        folder: the folder with the files of the campaign.
        terms: the settings of the campaign.

    Attributes:
        declared: backend → its first declaration.
        done: the names of the shards whose results are part of the outcome.
        ignored: name of a file in the folder of shards that is not a result of this
            campaign → the error.
    """

    def __init__(self, folder: Folder, terms: Terms) -> None:
        root = folder.path if isinstance(folder, LocalFolder) else Path()
        self.folder, self.terms = folder, terms
        self.outcome = Outcome(terms.get_settings(Path(root, FAILURES)))
        self.failures = Failures(folder, f"{FAILURES}/")
        self.declared: dict[str, messages.Declared] = {}
        self.done: set[str] = set()
        self.ignored: dict[str, str] = {}

    # --- its results --------------------------------------------------------------------

    def load(self) -> Outcome:
        """Adds the results in the folder to the outcome."""
        self.failures.find_files()
        for name, content in self.folder.read_all(self.folder.list(SHARDS)):
            try:
                if isinstance(content, UsageError):
                    raise content
                self.add(decode_result(content, name))
            except UsageError as error:
                self.ignored[name] = str(error)
        missing = [name for name in self.terms.backends if name not in self.declared]
        reason = "no machine of the campaign has had it so far"
        self.outcome.unavailable.update(dict.fromkeys(missing, reason))
        self.count_wanted()
        self.outcome.is_cut = self.outcome.seconds < (self.terms.seconds or 0)
        if self.terms.programs is not None:
            self.outcome.is_cut = next(self.iter_missing(), None) is not None
        return self.outcome

    def add(self, result: Result) -> None:
        """Adds the result of a shard to the outcome. Raises UsageError if it belongs to
        another campaign."""
        spec, (declared, *events) = result.spec, result.events
        assert isinstance(declared, messages.Declared)
        owned = self.terms.owns(spec, declared.share)
        if owned:
            self.add_declared(spec.task.backend, declared)
        pairs = self.list_pairs(spec.task)
        if not owned or not pairs:
            raise UsageError(f"{spec.name}: belongs to another campaign")
        self.done.add(spec.name)
        self.outcome.seconds = max(self.outcome.seconds, result.seconds)
        for event in events:
            if not isinstance(spec.task, messages.RandomTask):
                fold_ledger(self.outcome, spec.task.backend, event)
                continue
            about = pairs[0], spec.task, event, declared.get_environment()
            fold_shard(self.outcome, self.failures, *about)
            pairs[0].crashes += event.crashes if isinstance(event, Abandoned) else 0

    def add_declared(self, backend: str, event: messages.Declared) -> None:
        """Adds the pairs of a backend. Raises UsageError if the declaration has
        changed."""
        previous = self.declared.setdefault(backend, event)
        if previous is event:
            add_pairs(self.outcome, backend, event)
        elif previous.contracts != event.contracts:
            raise UsageError(
                f"{backend}: declares other kinds or operations than when the campaign in"
                f" {self.folder.location} began; start another campaign"
            )

    def list_pairs(self, task: messages.Task[Any]) -> list[Pair]:
        """Lists the pairs of a task."""
        is_ledger = isinstance(task, messages.RunLedger)
        pairs = self.outcome.pairs
        return [
            x for x in pairs if x.owns(task) or (is_ledger and x.backend == task.backend)
        ]

    def iter_missing(self) -> Iterator[Spec]:
        """Yields the shards that have no file and whose pair can run, until the time
        is over."""
        ledgers = [name for name, event in self.declared.items() if event.has_ledger]
        for spec in self.terms.iter_specs(self.outcome.pairs, ledgers):
            seconds = time.monotonic() - self.outcome.started
            is_spent = self.terms.seconds is not None and seconds >= self.terms.seconds
            if is_spent or all(pair.errors for pair in self.outcome.pairs):
                return
            pair = self.list_pairs(spec.task)[0]
            if spec.name not in self.done and not pair.errors:
                yield spec

    def count_wanted(self) -> None:
        """Sets the planned number of programs of each pair."""
        is_fixed = self.terms.programs is not None
        for pair in self.outcome.pairs:
            pair.wanted = 0 if is_fixed else 1  # a pair that never ran does not agree
        for spec in self.terms.iter_specs(self.outcome.pairs, ()) if is_fixed else ():
            assert isinstance(spec.task, messages.RandomTask)
            self.list_pairs(spec.task)[0].wanted += spec.task.programs

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
            watch: called with the outcome several times a second.

        Raises:
            UsageError: nothing can be run.
        """
        self.load()
        outcome, names = self.outcome, self.terms.backends or names
        outcome.is_cut, outcome.started = False, time.monotonic() - outcome.seconds
        with finishing(outcome), closing(open_runner()) as runner:
            self.declare(runner, names)
            self.count_wanted()
            try:
                for spec, events in run_specs(
                    runner, self.iter_missing(), lambda: watch(outcome)
                ):
                    self.take(spec, events)
            except OSError as error:
                outcome.unwritten = describe_unwritable(self.folder, error)
                outcome.is_cut = True
        return outcome

    def declare(self, runner: Runner, names: Sequence[str]) -> None:
        """Requests the declaration of each backend. Later declarations must equal the
        first."""
        self.outcome.unavailable.clear()
        specs = [self.terms.make_spec(messages.Declare(name)) for name in names]
        for spec, (event,) in run_specs(runner, iter(specs), lambda: None):
            if isinstance(event, messages.Declared):
                self.add_declared(spec.task.backend, event)
            elif isinstance(event, messages.Stopped):
                add_refusal(self.outcome, spec.task.backend, event)
        order = {name: index for index, name in enumerate(names)}
        self.outcome.pairs.sort(key=lambda pair: order.get(pair.backend, len(order)))
        require_kinds(self.outcome, names)

    def take(self, spec: Spec, events: Sequence[messages.Event]) -> None:
        """Adds the result of a shard, and writes its file. If the shard has no result,
        its pair runs no more shards. Raises OSError."""
        end = events[-1]
        if isinstance(end, ENDS) and (not isinstance(end, Abandoned) or end.crashes):
            seconds = round(time.monotonic() - self.outcome.started, 2)
            result = Result(spec, seconds, list[Any](events))
            self.add(result)
            is_damaged = spec.name in self.ignored
            write = self.folder.replace if is_damaged else self.folder.put
            write(spec.name, result.encode())
            return
        assert isinstance(end, messages.Stopped)
        for pair in self.list_pairs(spec.task):
            failures = self.outcome.settings.failures
            pair.errors.append(describe_stop(failures, end, pair.backend))
            pair.stop()


# --- its folder -------------------------------------------------------------------------


def begin(folder: Folder, terms: Terms) -> None:
    """Writes the settings of a campaign, unless the folder already has equal settings.

    Raises:
        UsageError: the folder has other contents, or cannot be written.
    """
    previous = read_terms(folder)
    if previous is None and folder.list():
        raise UsageError(
            f"{folder.location}: has files, but no campaign; choose an empty folder"
        )
    if previous is None:
        content = (json.dumps(structs.asdict(terms), indent=1) + "\n").encode()
        try:
            folder.replace(CAMPAIGN, content)
        except OSError as error:
            raise UsageError(describe_unwritable(folder, error)) from None
    elif (reason := compare(previous, terms)) is not None:
        raise UsageError(
            f"{folder.location}: holds another campaign: {reason}; choose another folder,"
            " or go on with `lockstep campaign resume`"
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
        reason = compare(whole, structs.replace(terms, shard=None))
        if reason is not None:
            raise UsageError(f"{folder.location}: belongs to another campaign: {reason}")
    begin(target, whole)
    try:
        for source, terms in parts:
            part = Campaign(source, terms)
            part.load()
            for name, content in source.read_all(part.done):
                if isinstance(content, bytes):
                    target.put(name, content)
        campaign = Campaign(target, whole)
        campaign.load()
    except OSError as error:
        raise UsageError(describe_unwritable(target, error)) from None
    return campaign
