"""The coordinator of a campaign: hands out shards, and writes what comes back.

A shard counts when its file is there. A coordinator that is killed loses what was running
and nothing else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.campaign.history import DECLARED, SHARDS, Declaration, History
from lockstep.harness.jobs.campaign.kept import FAILURES
from lockstep.harness.jobs.campaign.lock import Lock, describe_unwritable, held
from lockstep.harness.jobs.campaign.plan import (
    Shares,
    get_name,
    make_task,
)
from lockstep.harness.jobs.campaign.shard import (
    ENDS,
    Abandoned,
    Shard,
)
from lockstep.harness.jobs.campaign.team import Offer, Seat, Team
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.programs.files import RUNNING, format_program
from lockstep.harness.workers import messages

CORPUS_SECONDS = 30.0
"""How often the files of the corpus are written; they can be made of the shards again."""


class Campaign(History):
    """A campaign that runs.

    Attributes:
        saved: when the files of the corpus were written.
        events: of the shards that run; a seat that is lost takes its own along.
        shares: of a campaign without a fixed number of programs.
        numbers: the next shards of each pair.
    """

    lock: Lock
    team: Team
    saved: float
    shares: Shares
    numbers: list[Iterator[messages.RandomTask]]
    events: defaultdict[tuple[Seat, str], list[Any]]

    def plan(self) -> None:
        super().plan()
        pairs = self.outcome.pairs
        self.shares = Shares(len(pairs))
        self.numbers = [self.iter_numbers(pair) for pair in pairs]
        self.events = defaultdict(list)

    def get_seconds(self) -> float:
        return time.monotonic() - self.outcome.started

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

    def run_with(self, open_team: Callable[[], Team]) -> Outcome:
        """Until all is done, the budget is spent, or Ctrl-C: what was done is kept.

        Raises:
            UsageError: the folder cannot be used, or nothing can be run.
        """
        with held(self.folder) as self.lock:
            self.folder.sweep(f"{FAILURES}/{RUNNING}/")
            self.open_corpus()
            self.load()
            self.outcome.is_cut = False
            self.outcome.started = time.monotonic() - self.clock
            try:
                self.run_here(open_team)
                self.finish_corpus()
            except OSError as error:
                self.outcome.unwritten = describe_unwritable(self.folder, error)
                self.outcome.is_cut = True
            self.outcome.seconds = self.get_seconds()
        return self.outcome

    def run_here(self, open_team: Callable[[], Team]) -> None:
        try:
            with open_team() as self.team:
                self.prepare(self.team)
                self.work(self.team)
        except KeyboardInterrupt as interrupt:
            self.outcome.stop(interrupt)

    def save_corpus(self) -> None:
        """Writes the corpus, unless another coordinator does. Raises OSError."""
        if self.corpus is not None and self.lock.is_held():
            super().save_corpus()
        self.saved = time.monotonic()

    def prepare(self, team: Team) -> None:
        """Everything before the first shard."""
        self.remove_damaged(DECLARED)
        self.join(team)
        self.require_kinds()
        self.try_again()
        self.remove_damaged(SHARDS)
        self.plan()
        self.failures.write()
        self.save_corpus()

    def remove_damaged(self, below: str) -> None:
        for name in self.damaged:
            if name.startswith(f"{below}/"):
                self.folder.take(name)

    def try_again(self) -> None:
        """Takes in shards of backends that are declared now, since a file was damaged."""
        names = [name for name in self.damaged if name.startswith(f"{SHARDS}/")]
        for name, content in self.folder.read_all(names):
            del self.damaged[name]
            self.attempt(name, content, self.take_shard)
        for pair in self.outcome.pairs:
            self.show_failures(pair)

    def work(self, team: Team) -> None:
        try:
            self.tick()
            for seat, task, event in team.run(self.tasks, self.tick, self.equip):
                self.handle(seat, task, event)
        except UsageError as error:
            self.give_up(error)
            self.outcome.is_cut = True

    def join(self, team: Team) -> None:
        """Asks the machines what they have. The first declaration of a backend counts
        for the whole campaign."""
        offers = team.declare(self.names, self.beat)
        self.outcome.unavailable.clear()
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
        self.team.wanted[name] = self.declared[name].event.contracts

    def beat(self) -> None:
        self.lock.beat()

    def tick(self) -> None:
        self.beat()
        if not self.is_fixed:
            if self.is_spent():
                self.tasks.clear()
            self.fill()
        if time.monotonic() - self.saved > CORPUS_SECONDS:
            self.save_corpus()
        self.watch(self.outcome)

    def equip(self, task: messages.Task[Any]) -> messages.Task[Any]:
        """A shard with the programs that it starts from."""
        if self.corpus is None or not isinstance(task, messages.RandomTask):
            return task
        source = self.corpus if self.terms.share_corpus else self.given
        chosen = source.choose(task.kind, task.number)
        return msgspec.structs.replace(task, corpus=chosen)

    def handle(self, seat: Seat, task: messages.Task[Any], event: messages.Event) -> None:
        """An event of a shard that runs."""
        assert isinstance(task, messages.RandomTask | messages.RunLedger)
        name, place = get_name(task), (seat, get_name(task))
        environment = seat.offers[task.backend].environment
        if isinstance(event, messages.Found | messages.Agreed | messages.Kept):
            self.events[place].append(event)
        if isinstance(event, messages.Kept):
            return  # it counts when its shard does
        if isinstance(event, Abandoned) and not event.crashes:
            self.events.pop(place, None)
            self.note_error(task, event)
            return
        if isinstance(event, ENDS):
            events = [*filter(self.is_new, self.events.pop(place, ())), event]
            seconds = round(self.get_seconds(), 2)
            shard = Shard(leave_bare(task), dict(environment), seconds, events)
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

    def is_new(self, event: messages.Event) -> bool:
        """Whether the file of a shard is to have an event: what it has kept only if none
        that is done has kept better, or files would be many times as large."""
        if self.corpus is None or not isinstance(event, messages.Kept):
            return True
        return self.corpus.add(event.parse(), event.cells)

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
        (place,) = [n for n, one in enumerate(self.outcome.pairs) if one is pair]
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


def leave_bare(
    task: messages.RandomTask | messages.RunLedger,
) -> messages.RandomTask | messages.RunLedger:
    """A task without the programs that it starts from: the folder has them."""
    if isinstance(task, messages.RandomTask) and task.corpus:
        return msgspec.structs.replace(task, corpus=[])
    return task
