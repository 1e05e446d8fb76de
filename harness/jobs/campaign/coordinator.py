"""A campaign: a check that goes on until its budget is spent, with its state in a folder.

A shard counts when its file is there. Everything else is derived from these files, so a
coordinator that is killed loses what was running and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, ValidationError

from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.execution.shrink import get_rank
from lockstep.harness.jobs.campaign.folder import Folder, LocalFolder
from lockstep.harness.jobs.campaign.kept import FAILURES, Failures
from lockstep.harness.jobs.campaign.lock import Lock, describe_unwritable, held
from lockstep.harness.jobs.campaign.plan import (
    Shares,
    Terms,
    get_name,
    iter_fixed,
    make_task,
)
from lockstep.harness.jobs.campaign.shard import (
    ENDS,
    Abandoned,
    Shard,
    decode_shard,
)
from lockstep.harness.jobs.campaign.team import Offer, Seat, Team
from lockstep.harness.jobs.check import Check
from lockstep.harness.jobs.outcome import OUTDATED, Outcome, Pair, format_program, slug
from lockstep.harness.programs.program import Divergence, Program, parse_program
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Shown

SHARDS = "shards"
DECLARED = "declared"


class Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of what a backend declares: it says which pairs a campaign has."""

    backend: str
    event: messages.Declared
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.backend.encode()).hexdigest()[:8]
        return f"{DECLARED}/{slug(self.backend)}-{digest}.json"

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self)).encode() + b"\n"


def decode_declaration(content: bytes, where: str) -> Declaration:
    """Raises UsageError for what is not such a file."""
    document = parse_json(decode(content, where), where)
    try:
        declaration = msgspec.convert(document, Declaration)
        declaration.event.check()
    except (ValidationError, ValueError) as error:
        why = shorten(str(error))
        raise UsageError(f"{where}: is not a declaration: {why}") from None
    return declaration


class Campaign(Check):
    """A campaign in a folder.

    Args:
        folder: holds its state.
        terms: its settings.
        names: the registered backends, if the settings name none.
        jobs: worker processes of this machine.
        watch: is called with the outcome whenever it may have changed.

    Attributes:
        done: the names of the shards that count.
        damaged: the name of a file that is not what it should be → why.
    """

    def __init__(
        self,
        folder: Folder,
        terms: Terms,
        names: Sequence[str],
        jobs: int = 1,
        watch: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        root = folder.path if isinstance(folder, LocalFolder) else Path()
        super().__init__(terms.get_settings(Path(root, FAILURES), jobs), names, watch)
        self.folder, self.terms = folder, terms
        self.failures = Failures(folder)
        self.declared: dict[str, Declaration] = {}
        self.done: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.events: defaultdict[tuple[Seat, str], list[Any]] = defaultdict(list)
        self.known: defaultdict[str, dict[str, Shown]] = defaultdict(dict)
        self.agreeing: dict[str, Program] = {}
        self.clock = 0.0
        self.lock: Lock | None = None
        self.team: Team | None = None

    # --- what the folder has ------------------------------------------------------------

    def load(self) -> Outcome:
        """Takes in what the folder has."""
        for name, content in self.folder.read_all(self.folder.list(DECLARED)):
            self.attempt(name, content, self.take_declaration)
        for name, content in self.folder.read_all(self.folder.list(SHARDS)):
            self.attempt(name, content, self.take_shard)
        self.failures.read_left()
        for pair in self.outcome.pairs:
            self.show_failures(pair)
        self.plan()
        self.outcome.seconds = self.clock
        self.outcome.is_cut = bool(self.tasks) if self.is_fixed else not self.is_spent()
        return self.outcome

    def attempt(
        self, name: str, content: bytes | UsageError, take: Callable[[str, bytes], None]
    ) -> None:
        """Takes in a file, or notes that it is damaged."""
        try:
            if isinstance(content, UsageError):
                raise content
            take(name, content)
        except UsageError as error:
            self.damaged[name] = str(error)

    def take_declaration(self, name: str, content: bytes) -> None:
        self.add_declaration(decode_declaration(content, name))

    def add_declaration(self, declaration: Declaration) -> None:
        backend = declaration.backend
        self.declared[backend] = declaration
        self.outcome.versions.update(declaration.event.versions)
        self.add_pairs(backend, declaration.event)
        for pair in self.outcome.pairs:
            if pair.backend == backend:
                pair.environment = declaration.environment

    def take_shard(self, name: str, content: bytes) -> None:
        """Counts a shard that was done before."""
        shard = decode_shard(content, name)
        task = shard.task
        if get_name(task) != name or not self.is_own(task):
            raise UsageError(f"{name}: belongs to another campaign")
        self.done.add(name)
        self.clock = max(self.clock, shard.seconds)
        for event in shard.events:
            self.count(task, event, shard.environment)

    def is_own(self, task: messages.RandomTask | messages.RunLedger) -> bool:
        if isinstance(task, messages.RunLedger):
            return task.backend in self.declared
        own = self.terms.seed, self.terms.generator
        is_pair = any(pair.owns(task) for pair in self.outcome.pairs)
        return is_pair and (task.seed, task.generator) == own

    # --- one event, live or from a file -------------------------------------------------

    def count(
        self,
        task: messages.Task[Any],
        event: messages.Event,
        environment: Mapping[str, Any],
    ) -> None:
        if not isinstance(task, messages.RandomTask):
            self.handle_ledger(task.backend, event)
            return
        pair = self.find_pair(task)
        if isinstance(event, Abandoned):
            pair.running.pop(task.number, None)
            pair.crashes += event.crashes
            return
        before, pair.environment = pair.environment, environment
        self.handle_slice(task, event)
        pair.environment = before
        if isinstance(event, messages.SliceDone) and not self.is_fixed:
            pair.wanted += event.counts.programs

    def leave_out(self, pair: Pair) -> None:
        """Crashes leave nothing out: each costs its shard at most."""
        if pair.errors or pair.is_unwritten:
            super().leave_out(pair)

    def save(
        self,
        pair: Pair,
        task: messages.SliceTask,
        program: Program,
        divergence: Divergence,
        original: str | None = None,
        meta: Mapping[str, Any] = {},
    ) -> None:
        failure = self.describe_failure(pair, task, program, divergence, meta)
        self.failures.add(failure, original)

    def show_failures(self, pair: Pair) -> None:
        pair.failures[:] = self.failures.list_chosen(*pair.key)

    def tell(self, pair: Pair, found: Mapping[str, Shown]) -> None:
        """Of a fixed number of programs each shard depends on its own alone, wherever and
        in whatever order they run; else what is known need not be shrunk again."""
        if not self.is_fixed:
            known = self.known[pair.backend]
            for signature, more in found.items():
                shown = known.setdefault(signature, Shown())
                shown.programs = max(shown.programs, more.programs)
                shown.states.update(more.states)

    def keep_agreed(self, pair: Pair, event: messages.Agreed) -> None:
        """Of each entry, the simplest program."""
        program = parse_program(event.program, "a program of the ledger")
        name = f"{FAILURES}/{OUTDATED}/{slug(event.entry)}-{slug(pair.backend)}.json"
        before = self.agreeing.get(name)
        if before is None:
            where = self.folder.path / name
            words = "describes an operation that agrees: its `when` is too wide"
            pair.outdated.append(f"{event.entry}: {words}: {where}")
        if before is None or get_rank(program) < get_rank(before):
            what = f"the ledger's entry {event.entry} describes an operation that agrees"
            meta = {"backend": pair.backend, "what": what}
            self.agreeing[name] = replace(program, meta=meta)

    # --- what is to do ------------------------------------------------------------------

    @property
    def is_fixed(self) -> bool:
        """Whether the seed alone says which shards there are."""
        return self.terms.programs is not None

    def is_spent(self) -> bool:
        """Whether a budget of time or steps is used up, by what runs now too."""
        if self.terms.seconds is not None:
            return self.get_seconds() >= self.terms.seconds
        steps = sum(pair.get_progress()[1] for pair in self.outcome.pairs)
        return self.terms.steps is not None and steps >= self.terms.steps

    def get_seconds(self) -> float:
        """How long the campaign has run, all its coordinators together."""
        if self.lock is None:
            return self.clock
        return time.monotonic() - self.outcome.started

    def plan(self) -> None:
        self.tasks.clear()
        for backend in self.declared:
            ledger = messages.RunLedger(backend)
            if self.terms.has([backend], 0) and get_name(ledger) not in self.done:
                self.tasks.append(ledger)
        pairs = self.outcome.pairs
        self.shares = Shares(len(pairs))
        self.numbers = [iter(self.iter_numbers(pair)) for pair in pairs]
        if self.is_fixed:
            for task in iter_fixed(self.terms, pairs):
                self.find_pair(task).wanted += task.programs
                if get_name(task) not in self.done:
                    self.tasks.append(task)

    def iter_numbers(self, pair: Pair) -> Iterator[messages.RandomTask]:
        """The shards of a pair that are not done, without end."""
        number = 0
        while True:
            task = make_task(self.terms, pair, number, self.terms.slice)
            if self.terms.has(pair.key, number) and get_name(task) not in self.done:
                yield task
            number += 1

    def fill(self) -> None:
        """Keeps enough shards waiting, as long as there is budget."""
        assert self.team is not None
        pairs = self.outcome.pairs
        wanted = [
            place
            for place, pair in enumerate(pairs)
            if not pair.errors and not pair.is_unwritten
        ]
        # Without a machine that can run any of them, the first one waits for one.
        able = [
            place for place in wanted if self.team.has(pairs[place].backend)
        ] or wanted
        while able and len(self.tasks) < self.team.room and not self.is_spent():
            place = self.shares.choose(able)
            task = next(self.numbers[place])
            known = deepcopy(self.known[task.backend])
            self.tasks.append(msgspec.structs.replace(task, known=known))

    # --- it runs ------------------------------------------------------------------------

    def run_with(self, open_team: Callable[[], Team]) -> Outcome:
        """Until all is done, the budget is spent, or Ctrl-C: what was done is kept.

        Raises:
            UsageError: the folder cannot be used, or nothing can be run.
        """
        with held(self.folder) as self.lock:
            self.folder.sweep()
            self.load()
            self.outcome.is_cut = False
            self.outcome.started = time.monotonic() - self.clock
            try:
                with open_team() as self.team:
                    self.prepare(self.team)
                    self.work(self.team)
            except KeyboardInterrupt as interrupt:
                self.outcome.stop(interrupt)
            except OSError as error:
                self.outcome.unwritten = describe_unwritable(self.folder, error)
                self.outcome.is_cut = True
            self.outcome.seconds = self.get_seconds()
        return self.outcome

    def prepare(self, team: Team) -> None:
        """Everything before the first shard."""
        self.join(team)
        self.require_kinds()
        for pair in self.outcome.pairs:
            pair.wanted = 0 if self.is_fixed else pair.wanted
        self.plan()
        for name in self.damaged:
            self.folder.take(name)
        self.failures.write()

    def work(self, team: Team) -> None:
        try:
            self.tick()
            for seat, task, event in team.run(self.tasks, self.tick):
                self.handle(seat, task, event)
        except UsageError as error:
            self.give_up(error)
            self.outcome.is_cut = True

    def join(self, team: Team) -> None:
        """Asks the machines what they have. The first declaration of a backend counts
        for the whole campaign."""
        offers = team.declare(self.names, self.beat)
        for name in self.names:
            offer = offers[name]
            if isinstance(offer.event, messages.Declared):
                self.welcome(name, offer)
            elif isinstance(offer.event, messages.Refused):
                self.outcome.unavailable[name] = offer.event.why
            else:
                self.outcome.dead[name] = offer.event.describe()

    def welcome(self, name: str, offer: Offer) -> None:
        assert isinstance(offer.event, messages.Declared)
        before = self.declared.get(name)
        if before is None:
            now = Declaration(name, offer.event, dict(offer.environment))
            self.folder.put(now.name, now.encode())
            self.add_declaration(now)
        elif before.event.contracts != offer.event.contracts:
            raise UsageError(
                f"{name}: declares other kinds or operations than when the campaign in"
                f" {self.folder.place} began; start another campaign"
            )

    def beat(self) -> None:
        assert self.lock is not None
        self.lock.beat()

    def tick(self) -> None:
        self.beat()
        if not self.is_fixed:
            if self.is_spent():
                self.tasks.clear()
            self.fill()
        self.watch(self.outcome)

    def handle(self, seat: Seat, task: messages.Task[Any], event: messages.Event) -> None:
        """An event of a shard that runs."""
        assert isinstance(task, messages.RandomTask | messages.RunLedger)
        name, place = get_name(task), (seat, get_name(task))
        environment = seat.offers[task.backend].environment
        if isinstance(event, messages.Found | messages.Agreed):
            self.events[place].append(event)
        if isinstance(event, Abandoned) and not event.crashes:
            self.events.pop(place, None)
            self.note_error(task, event)
            return
        if isinstance(event, ENDS):
            events = [*self.events.pop(place, ()), event]
            seconds = round(self.get_seconds(), 2)
            shard = Shard(task, dict(environment), seconds, events)
            self.folder.put(name, shard.encode())
            self.done.add(name)
            self.learn(task, event)
        elif isinstance(event, messages.Stopped):
            self.events.pop(place, None)
            self.note_error(task, event)
            return
        self.count(task, event, environment)
        if isinstance(event, messages.Found):
            assert isinstance(task, messages.SliceTask)
            self.keep_files(self.find_pair(task))
        elif isinstance(event, messages.Agreed):
            self.write_agreeing()

    def note_error(self, task: messages.Task[Any], event: messages.Stopped) -> None:
        """A shard has come to nothing, and no other of its pair is tried."""
        for pair in self.outcome.pairs:
            if pair.owns(task) or (
                isinstance(task, messages.RunLedger) and pair.backend == task.backend
            ):
                pair.errors.append(self.describe(event, pair.backend))
                self.leave_out(pair)

    def learn(self, task: messages.Task[Any], event: messages.Event) -> None:
        """What a shard has found that is new decides who gets the next ones."""
        if not isinstance(event, messages.SliceDone):
            return
        assert isinstance(task, messages.SliceTask)
        pair = self.find_pair(task)
        new = sum((state, op) not in pair.coverage for state, op, _ in event.coverage)
        new += len(event.counts.signatures.keys() - pair.signatures.keys())
        place = self.outcome.pairs.index(pair)
        self.shares.learn(place, new, event.counts.seconds)

    def keep_files(self, pair: Pair) -> None:
        """Writes the failures that are chosen now. Raises OSError."""
        try:
            self.failures.write()
        except OSError as error:
            why = error.strerror or str(error)
            self.show_failures(pair)
            pair.failures[:] = [
                one if self.failures.has_file(one) else replace(one, unsaved=why)
                for one in pair.failures
            ]
            raise
        self.show_failures(pair)

    def write_agreeing(self) -> None:
        for name, program in self.agreeing.items():
            self.folder.replace(name, format_program(program).encode())
