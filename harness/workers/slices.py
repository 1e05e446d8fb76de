"""Runs programs with the write-ahead record kept, and shrinks them; slices of them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.document import drop_defaults
from lockstep.harness.core.errors import Unavailable, UsageError
from lockstep.harness.execution.executor import Coverage, Record, Result, run
from lockstep.harness.execution.metamorphic.reference import derive_one
from lockstep.harness.execution.shrink import (
    Clock,
    Shrinker,
    Shrunk,
    SideFailures,
    make_busy_clock,
)
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk, fit
from lockstep.harness.programs.ledger import Entry, is_known, load_ledger, why_unsupported
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    breaks_usage,
    parse_program,
    why_too_large,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import (
    Event,
    ExhaustiveTask,
    GivenTask,
    RandomTask,
    SurveyDomain,
    Surveyed,
    tally,
)
from lockstep.harness.workers.registry import get_target, hash_code

# --- a program --------------------------------------------------------------------------


Emit = Callable[[Event], None]

COSTLY = ("alias", "attention")
"""Values of `Divergence.what` that only costly checks show."""


class Runner:
    """Runs programs in this process.

    Attributes:
        record: the write-ahead record.
        emit: sends an event to the pool.
        asked: the name of the backend, as the task has it.
    """

    def __init__(self, record: Record, emit: Emit) -> None:
        self.record, self.emit = record, emit
        self.asked = ""

    def note(self, program: Program) -> None:
        """Records that work on a program begins, so that the pool does not see a hang."""
        self.record.begin(program, self.asked)

    def run(
        self, program: Program, backend: Backend, every: bool, wanted: str | None = None
    ) -> Result:
        """Runs a program with the record kept. wanted: see `executor.run`."""
        self.note(program)
        step = self.record.step
        result = run(program, backend, every=every, on_step=step, wanted=wanted)
        self.record.end()
        return result

    def run_both(self, program: Program, backend: Backend) -> Result:
        """Runs a program with every check at every step. If it agrees, runs it again with
        costly checks at some steps, as in a slice: to read an array can hide a bug. If
        `meta` has a signature, the first run looks for that one."""
        said = program.meta.get("signature")
        wanted = said if isinstance(said, str) else None
        result = self.run(program, backend, True, wanted)
        if result.divergence is None and backend.execute is not None:
            return self.run(program, backend, every=True)
        return result if result.divergence else self.run(program, backend, every=False)

    def shrink(
        self,
        program: Program,
        divergence: Divergence,
        backend: Backend,
        seconds: float,
        avoid: Sequence[Entry] = (),
        clock: Clock = time.monotonic,
    ) -> Shrunk:
        """Makes a program shorter that keeps its signature.

        The result breaks a rule of usage only if the given program does.

        Args:
            program: diverges, as `divergence` says.
            divergence: the first one of the program.
            backend: runs the candidates.
            seconds: when to stop, at the latest.
            avoid: known divergences; no candidate may lead to one.
            clock: measures `seconds`.
        """
        signature = divergence.get_signature(program)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        others = SideFailures()
        is_misuse = backend.execute is not None or breaks_usage(program)

        def find(candidate: Program, every: bool) -> Divergence | None:
            found = self.run(candidate, backend, every, signature).divergence
            if found is not None and not is_misuse and breaks_usage(candidate):
                return None
            if found is None or found.get_signature(candidate) == signature:
                return found
            others.add(candidate, found)
            return None

        # Costly checks only where the others do not show the divergence. Those of some
        # steps may not show it in another program, in which other steps are sampled.
        if backend.execute is not None:
            every = True
        elif divergence.what in COSTLY:
            every = find(program, every=True) is not None
        else:
            every = find(program, every=False) is None

        latest = shown = divergence

        def fails(candidate: Program) -> bool:
            nonlocal latest
            found = find(candidate, every)
            latest = found or latest
            return found is not None

        def cut(failing: Program) -> Program:
            nonlocal shown
            shown = latest  # of the program that is the best from now on
            return replace(failing, ops=failing.ops[: latest.step + 1])

        if not fails(program):
            return Shrunk(program, divergence)
        shown = latest

        def is_declared(candidate: Program) -> bool:
            if why_too_large(candidate) or why_unsupported(candidate, backend):
                return False
            return not (avoid and is_known(candidate, avoid))

        best = Shrinker(program, fails, seconds, is_declared, cut, clock).shrink()
        # A backend need not fail each time.
        return Shrunk(best, find(best, every) or shown, others.shortest)


# --- a slice of the programs for one kind of one backend --------------------------------


PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0

MAX_HANGS = 2
"""Programs at which a driver may hang before the rest of a slice is left out."""

T = TypeVar("T", bound=messages.SliceTask)


class Slice(ABC, Generic[T]):
    """Runs its programs, counts them, and shrinks and reports those that diverge."""

    def __init__(self, worker: Runner, backend: Backend, task: T) -> None:
        self.worker, self.backend, self.task = worker, backend, task
        self.counts = messages.Counts()
        self.coverage: Coverage = Counter()
        self.told: set[Cell] = set()
        self.known = set(task.known)
        self.avoid = load_ledger(backend.ledger, backend.name)
        self.digest = hashlib.sha256()
        self.hangs = 0
        self.reported = 0.0
        self.started = time.monotonic()

    @abstractmethod
    def generate(self) -> None:
        """Makes the programs, and calls `count` with each."""

    def check(self) -> messages.SliceDone:
        """Runs all programs.

        Raises:
            Unavailable: a driver hangs again and again.
        """
        self.generate()
        self.counts.seconds = self.get_seconds()
        coverage = [(*cell, times) for cell, times in sorted(self.coverage.items())]
        return messages.SliceDone(self.counts, coverage, self.digest.hexdigest())

    def count(self, program: Program) -> None:
        """Runs one program, and counts it."""
        self.counts.programs += 1
        result = self.run(program)
        divergence = result.divergence
        self.counts.unfinished += divergence is not None and divergence.what == "missing"
        self.counts.steps += result.steps
        self.counts.skipped += result.skipped
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.report_progress()

    def report_progress(self) -> None:
        self.reported = time.monotonic()
        self.counts.seconds = self.get_seconds()
        fresh = [cell for cell in self.coverage if cell not in self.told]
        self.told.update(fresh)
        self.worker.emit(messages.Progress(self.counts, fresh))

    def run(self, program: Program) -> Result:
        """Runs a program; shrinks and reports a divergence that is new."""
        record = self.worker.record
        self.digest.update(record.begin(program, self.worker.asked))
        result = run(program, self.backend, coverage=self.coverage, on_step=record.step)
        record.end()
        self.counts.margin = max(self.counts.margin, result.margin)
        if result.divergence is not None:
            self.report(program, result.divergence)
            self.hangs += result.divergence.what == "hang"
            if self.hangs >= MAX_HANGS:  # each costs a second at least
                raise Unavailable(
                    f"{result.divergence.message}; that was the second program, and the"
                    " rest is left out"
                )
        return result

    def report(self, program: Program, divergence: Divergence) -> None:
        """Sends a program that diverges in a new way, then the shorter one; the same for
        programs that diverge in other ways while it is made shorter."""
        if divergence.what == "missing":  # there is nothing to shrink
            self.counts.missing.setdefault(divergence.message, divergence.operation)
            return
        messages.tally(self.counts.signatures, divergence.get_signature(program))
        waiting = [(program, divergence)]
        while waiting:
            program, divergence = waiting.pop(0)
            signature = divergence.get_signature(program)
            if signature in self.known or divergence.what == "missing":
                continue
            self.known.add(signature)
            self.emit_found(program, divergence)  # for whoever stops the run now
            limits = SHRINK_SECONDS, self.avoid, make_busy_clock()
            small = self.worker.shrink(program, divergence, self.backend, *limits)
            self.emit_found(small.program, small.divergence)
            waiting += small.others.values()

    def emit_found(self, program: Program, divergence: Divergence) -> None:
        after = self.counts.programs, self.get_seconds()
        self.worker.emit(messages.Found(program.to_json(), divergence, *after))

    def get_seconds(self) -> float:
        return round(time.monotonic() - self.started, 3)


def make_drawer(
    backend: Backend, task: messages.SliceTask | messages.SurveyDomain
) -> Drawer:
    """Draws programs of a kind as the backend declares it, and avoids its ledger."""
    declared = backend.contracts[task.contract][task.kind]
    avoid = load_ledger(backend.ledger, backend.name)
    return Drawer(task.contract, task.kind, declared, backend.dtypes, avoid)


# --- programs that a generator draws ----------------------------------------------------


DERIVED = 12
"""After every 12th program, one that is derived from it runs as well. The reference's
answers to both are compared elsewhere."""


class RandomSlice(Slice[RandomTask]):
    """Programs drawn from a seed."""

    def generate(self) -> None:
        task = self.task
        seed = get_seed(task.seed, task.contract, task.kind, task.number)
        draw = make_drawer(self.backend, task).draw
        GENERATORS[task.generator](task.programs, seed, draw, self.consume)

    def consume(self, program: Program) -> None:
        self.count(program)
        programs = self.counts.programs
        if programs % DERIVED == 0 and self.backend.execute is None:
            derived = derive_one(program, programs // DERIVED)
            if derived and self.is_allowed(derived):
                self.run(derived)

    def is_allowed(self, program: Program) -> bool:
        """Whether the backend declares it, and no entry of the ledger describes it."""
        if why_unsupported(program, self.backend):
            return False
        return not (self.avoid and is_known(program, self.avoid))


def get_seed(seed: int, contract: str, kind: str, number: int) -> int:
    """The seed of a slice, which does not depend on the backend or on the worker."""
    digest = hashlib.sha256(json.dumps([seed, contract, kind, number]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


# --- programs of a set of vectors -------------------------------------------------------


WITHOUT_EFFECT = ("dtype", "heads", "key_dim", "value_dim", "conv_width", "step")
"""Fields of a config on which no answer depends."""


class GivenSlice(Slice[GivenTask]):
    """Programs that were drawn elsewhere, as far as the backend declares them."""

    def generate(self) -> None:
        for document in self.task.programs:
            program = self.adapt(parse_program(document, "program"))
            why = self.why_left_out(program)
            if why is not None:
                tally(self.counts.undeclared, why)
            elif self.avoid and is_known(program, self.avoid):
                self.counts.avoided += 1
            else:
                self.count(program)
            # If the backend ends the process, the job knows which programs are left.
            self.report_progress()

    def adapt(self, program: Program) -> Program:
        """The same with sizes that the backend declares, where they change no answer."""
        own = self.backend.contracts.get(program.contract, {}).get(program.kind)
        if own is None or program.contract == "prefix":  # bytes, and limits of bytes
            return program
        declared = {**own.config, "dtype": self.backend.dtypes}
        config = dict(program.config)
        for name in WITHOUT_EFFECT:
            values = declared.get(name)
            if values and name in config and config[name] not in values:
                config[name] = values[0]
        adapted = replace(program, config=config)
        return program if why_too_large(adapted) else adapted

    def why_left_out(self, program: Program) -> str | None:
        """Why the backend cannot be asked to run a program, if it cannot."""
        why = why_unsupported(program, self.backend)
        if why is None:
            own = self.backend.contracts[program.contract][program.kind]
            if not own.refuses and breaks_usage(program):
                return f"{self.backend.name} does not declare to refuse wrong calls"
        return why


# --- all programs over a domain with one beginning --------------------------------------


MAX_PROGRAMS = 10**10
"""Programs of an exploration, illegal ones included: that takes weeks."""

BEHIND, LONGEST = 3, 4
"""Operations after the common beginning of a slice; and in it, at most."""


def make_walk(drawer: Drawer, size: str, backend: Backend) -> Walk:
    """The tree over the domain of this size, as far as the backend declares it."""
    rules = drawer.rules
    domain = rules.get_domain(drawer.kind, size)
    world = fit(domain, rules, drawer.kind, drawer.declared, backend.dtypes)
    return Walk(rules, world, drawer.is_known)


class ExhaustiveSlice(Slice[ExhaustiveTask]):
    """The programs with one beginning."""

    def generate(self) -> None:
        task = self.task
        walk = make_walk(make_drawer(self.backend, task), task.size, self.backend)
        start = walk.follow(tuple(task.path), task.covered)
        for branch in walk.find_longest(start, task.depth):
            self.count(walk.make_program(branch))
            self.counts.covered += branch.covered
            self.counts.avoided = walk.avoided
        self.counts.avoided = walk.avoided


def survey(worker: Runner, backend: Backend, task: SurveyDomain) -> Surveyed:
    """The domain, and where its slices begin.

    Raises:
        UsageError: there are too many programs.
    """
    drawer = make_drawer(backend, task)
    walk = make_walk(drawer, task.size, backend)
    world, depth, moves = walk.world, task.depth, len(walk.world.moves)
    if moves**depth > MAX_PROGRAMS:
        raise UsageError(
            f"--depth {depth}: {moves} operations make up to {moves**depth:.0e} programs;"
            f" choose at most {int(math.log(MAX_PROGRAMS, moves))}, or a smaller --size"
        )
    length = min(LONGEST, max(1, depth - BEHIND))
    branches = list(walk.find_longest(ROOT, length))
    known = [[entry.id, dict(entry.when)] for entry in drawer.avoid]
    content = [dict(world.config), list(world.moves), known]
    text = json.dumps(content, sort_keys=True)
    return Surveyed(
        moves=list(world.moves),
        symmetries=len(world.symmetries),
        config=drop_defaults(world.config, walk.rules.config),
        parts=[(list(branch.path), branch.covered) for branch in branches],
        avoided=walk.avoided,
        digest=hashlib.sha256(text.encode()).hexdigest()[:12],
        code=hash_code(get_target(task.backend)),
        versions={str(name): str(own) for name, own in backend.versions.items()},
    )
