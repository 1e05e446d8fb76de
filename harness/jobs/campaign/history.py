"""What a campaign has come to, by the files in its folder.

A shard counts when its file is there. Everything else is derived from these files, so a
coordinator that is killed loses what was running and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, ValidationError

from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.core.folder import Folder, LocalFolder, open_folder
from lockstep.harness.execution.shrink import get_rank
from lockstep.harness.jobs.campaign.kept import FAILURES, Failures
from lockstep.harness.jobs.campaign.plan import (
    Terms,
    get_name,
    iter_fixed,
)
from lockstep.harness.jobs.campaign.shard import (
    Abandoned,
    decode_shard,
)
from lockstep.harness.jobs.check import Check
from lockstep.harness.jobs.outcome import OUTDATED, Outcome, Pair, slug
from lockstep.harness.programs.corpus import Corpora, CorpusFolder, open_corpus
from lockstep.harness.programs.program import Divergence, Program, parse_program
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Shown

SHARDS = "shards"
DECLARED = "declared"
GIVEN = "given"
"""The folder of the corpus that a campaign was given; it stays as it is."""

CORPUS = "corpus"
"""The folder of the corpus that a campaign has come to."""


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


def open_below(folder: Folder, name: str) -> Folder:
    return open_folder(f"{folder.place}/{name}")


def write_given(folder: Folder, given: Corpora) -> None:
    """Writes the corpus that a campaign is given. Raises OSError."""
    there = CorpusFolder(open_below(folder, GIVEN))
    there.take_over(given)
    there.save()


def read_given(folder: Folder, terms: Terms) -> Corpora:
    """The same as it was written; an empty one if none was given. Raises UsageError."""
    if terms.corpus is None:
        return Corpora()
    place = open_below(folder, GIVEN).place
    given = open_corpus(place)
    if given.compute_digest() != terms.corpus:
        raise UsageError(
            f"{place}: these are not the programs that the campaign began with; repeat"
            " the `lockstep campaign start` with its --corpus"
        )
    return given


class History(Check):
    """A campaign as its folder has it.

    Args:
        folder: holds its state.
        terms: its settings.
        names: the registered backends, if the settings name none.
        jobs: worker processes of this machine.
        watch: is called with the outcome whenever it may have changed.

    Attributes:
        done: the names of the shards that count.
        given: the corpus that the campaign was given, once it is open.
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
        self.given = Corpora()
        self.damaged: dict[str, str] = {}
        self.known: defaultdict[str, dict[str, Shown]] = defaultdict(dict)
        self.agreeing: dict[str, Program] = {}
        self.clock = 0.0

    # --- what the folder has ------------------------------------------------------------

    def open_corpus(self) -> None:
        """Lets the shards that are loaded or run from now on add to the corpus.

        Raises:
            UsageError: the given programs are not those that the campaign began with.
        """
        if not self.terms.has_corpus:
            return
        self.given = read_given(self.folder, self.terms)
        self.corpus = CorpusFolder(open_below(self.folder, CORPUS))
        self.corpus.take_over(self.given)
        self.corpus.adopt_files()

    def load(self) -> Outcome:
        """Takes in what the folder has."""
        for name, content in self.folder.read_all(self.folder.list(DECLARED)):
            self.attempt(name, content, self.take_declaration)
        for name, content in self.folder.read_all(self.folder.list(SHARDS)):
            self.attempt(name, content, self.take_shard)
        absent = [name for name in self.terms.backends if name not in self.declared]
        why = "no machine of the campaign has had it so far"
        self.outcome.unavailable.update(dict.fromkeys(absent, why))
        self.failures.read_left()
        for pair in self.outcome.pairs:
            self.show_failures(pair)
        self.plan()
        if self.terms.has_corpus:
            self.outcome.corpus = len(self.folder.list(CORPUS))
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
        own = self.terms.seed, self.terms.generator, self.terms.has_corpus
        is_pair = any(pair.owns(task) for pair in self.outcome.pairs)
        return is_pair and own == (
            *(task.seed, task.generator),
            task.corpus is not None,
        )

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
        return self.clock

    def plan(self) -> None:
        self.tasks.clear()
        for backend in self.declared:
            ledger = messages.RunLedger(backend)
            if self.terms.has([backend], 0) and get_name(ledger) not in self.done:
                self.tasks.append(ledger)
        pairs = self.outcome.pairs
        for pair in pairs:
            pair.wanted = 0 if self.is_fixed else 1  # one that never ran does not agree
        if self.is_fixed:
            for task in iter_fixed(self.terms, pairs):
                self.find_pair(task).wanted += task.programs
                if get_name(task) not in self.done:
                    self.tasks.append(task)
