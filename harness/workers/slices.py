"""Slices of programs: runs them, counts them, and shrinks those that diverge."""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.contract import WITHOUT_EFFECT
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.document import drop_defaults
from lockstep.harness.core.errors import Unavailable, UsageError
from lockstep.harness.core.payload import merge_margins
from lockstep.harness.execution.executor import (
    Coverage,
    Result,
    Run,
    run,
    run_together,
)
from lockstep.harness.execution.metamorphic.reference import derive_one
from lockstep.harness.execution.shrink import make_busy_clock
from lockstep.harness.programs.corpus import find_cells
from lockstep.harness.programs.generate import DRAWERS, GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk, fit
from lockstep.harness.programs.ledger import (
    Entry,
    KnownProgram,
    drop_undeclared,
    find_known,
    leave_out,
    list_known,
    load_ledger,
    why_unsupported,
)
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    breaks_usage,
    find_states,
    parse_program,
    why_too_large,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Shown, tally
from lockstep.harness.workers.messages import (
    ExhaustiveTask,
    GivenTask,
    RandomTask,
    SurveyDomain,
    Surveyed,
)
from lockstep.harness.workers.registry import get_target, hash_code
from lockstep.harness.workers.runner import COSTLY, Runner

# --- a slice of the programs for one kind of one backend --------------------------------


PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0

WATCHED = 16
"""One program of a slice in so many runs with every check."""


def is_watched(number: int) -> bool:
    """Says whether program `number` of a slice, from 0, runs with every check: never the
    first, which is the simplest that Hypothesis draws."""
    return number % WATCHED == WATCHED // 2


MOST_TRIED = 8
"""Programs of a slice with one signature that are shrunk because of their states."""

MAX_HANGS = 2
"""Programs at which a driver may hang before the rest of a slice is left out."""

KNOWN_SHARE = 20
"""Of the programs that lead to a known divergence, one in so many runs on behind the
operation that an entry describes; the first of a slice, too."""

ENOUGH_AGREED = 3
"""Programs of a slice that agree behind an operation which an entry describes, where one
may agree by chance."""

T = TypeVar("T", bound=messages.SliceTask)


class Side:
    """What one backend does in a slice: counts the programs, and shrinks and reports
    those that diverge.

    Args:
        worker: runs the programs.
        backend: runs them beside the reference.
        task: the slice.
        known: signature → the programs that have shown it before.
        number: among the backends of the slice, from 0.
    """

    def __init__(
        self,
        worker: Runner,
        backend: Backend,
        task: messages.SliceTask,
        known: Mapping[str, Shown],
        number: int = 0,
    ) -> None:
        self.worker, self.backend, self.number = worker, backend, number
        self.counts = messages.Counts()
        self.coverage: Coverage = Counter()
        self.told: set[Cell] = set()
        self.shown = dict(known)
        self.tried: Counter[str] = Counter()
        self.avoid = load_ledger(backend.ledger, backend.name, task.kind)
        self.met = 0
        self.agreed: defaultdict[str, list[Program]] = defaultdict(list)
        self.digest = hashlib.sha256()
        self.hangs = 0
        self.is_over = False
        self.among = 1
        self.reported = 0.0
        self.started = time.monotonic()

    def emit(self, event: messages.OfSlice) -> None:
        """Sends an event about this backend."""
        own = messages.Beside(self.number, event) if self.number else event
        self.worker.emit(own)

    def adapt(self, program: Program) -> Program:
        """A program that was drawn for another backend, as this one declares it."""
        declared = self.backend.contracts[program.contract][program.kind]
        return drop_undeclared(program, declared)

    def announce(self, step: int) -> None:
        """Records the step that this backend is about to run."""
        self.take_turn()
        self.worker.record.step(step)

    def take_turn(self) -> None:
        """Records that what runs now runs on this backend."""
        self.worker.record.side = self.number

    def judge(self, program: Program, result: Result) -> None:
        """Shrinks and reports a divergence that is new.

        Raises:
            Unavailable: a driver hangs again and again.
        """
        if result.divergence is None:
            return
        self.take_turn()
        self.report(*tidy(program, result), self.avoid)
        self.hangs += result.divergence.what == "hang"
        if self.hangs >= MAX_HANGS:  # each costs a second at least
            raise Unavailable(
                f"{result.divergence.message}; that was the second program, and the"
                " rest is left out"
            )

    def include(self, program: Program, result: Result) -> None:
        """Counts the result of a program, and runs on behind what it has left out."""
        if result.divergence is not None:
            self.count_divergence(program, result.divergence)
        self.counts.steps += result.steps
        self.counts.skipped += result.skipped
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.report_progress()
        self.meet(list_known(program, result.left_out))

    def count_divergence(self, program: Program, divergence: Divergence) -> None:
        if divergence.what == "missing":
            self.counts.unfinished += 1
        else:
            tally(self.counts.signatures, divergence.get_signature(program))

    def report_progress(self) -> None:
        self.reported = time.monotonic()
        self.counts.seconds = self.get_seconds()
        fresh = [cell for cell in self.coverage if cell not in self.told]
        self.told.update(fresh)
        self.emit(messages.Progress(self.counts, fresh))

    def execute(
        self, program: Program, every: bool, avoid: Sequence[Entry] = ()
    ) -> Result:
        """Runs a program on this backend with the record and the coverage kept."""
        self.take_turn()
        record = self.worker.record
        self.digest.update(record.begin(program, self.worker.asked))
        if self.worker.is_fatal(program):
            return Result()
        own = self.coverage, self.announce
        result = run(program, self.backend, every, *own, avoid=avoid)
        record.end()
        return self.note_margins(result)

    def note_margins(self, result: Result) -> Result:
        self.counts.margins = merge_margins(self.counts.margins, result.margins)
        return result

    def report(
        self, program: Program, divergence: Divergence, avoid: Sequence[Entry]
    ) -> None:
        """Sends a program that diverges, then the shorter one, if it may show a bug that
        is not known; the same for programs that diverge in other ways while it is made
        shorter."""
        if divergence.what == "missing":  # there is nothing to shrink
            self.counts.missing.setdefault(divergence.message, divergence.operation)
            return
        waiting = [(program, divergence)]
        while waiting and not self.is_over:
            program, divergence = waiting.pop(0)
            if divergence.what != "missing" and self.is_new(program, divergence):
                waiting += self.shrink(program, divergence, avoid)

    def is_new(self, program: Program, divergence: Divergence) -> bool:
        """Counts a program, and judges whether it may show a bug that is not known.

        It may if no shrunk program with its signature fails in states that it has met,
        too. Of the others the second, the fourth, and so on are taken.
        """
        signature = divergence.get_signature(program)
        shown = self.shown.setdefault(signature, Shown())
        shown.programs += 1
        states = find_states(program, divergence)
        is_other = not any(states.issuperset(each) for each in shown.states.values())
        if is_other:
            self.tried[signature] += 1
        is_taken = shown.programs > 1 and shown.programs.bit_count() == 1
        return is_taken or (is_other and self.tried[signature] <= MOST_TRIED)

    def shrink(
        self, program: Program, divergence: Divergence, avoid: Sequence[Entry]
    ) -> list[tuple[Program, Divergence]]:
        """Sends a program and the shorter one.

        Returns:
            One program for each other way in which it diverged while it was made shorter.
        """
        self.emit_found(program, divergence)  # for whoever stops the run now
        limits = SHRINK_SECONDS, avoid, make_busy_clock()
        small = self.worker.shrink(program, divergence, self.backend, *limits)
        shown = self.shown[divergence.get_signature(program)]
        states = find_states(program, divergence)
        before = shown.states.get(small.program.digest())
        states &= (
            find_states(small.program, small.divergence) if before is None else {*before}
        )
        shown.states[small.program.digest()] = sorted(states)
        self.emit_found(
            small.program,
            small.divergence,
            original=program.digest(),
            states=sorted(states),
            flaky=None if small.flaky is None else str(small.flaky),
        )
        self.is_over = self.is_enough(small.program)
        others = small.others.items()
        return [found for signature, found in others if signature not in self.shown]

    def is_enough(self, small: Program) -> bool:
        """Says whether the rest of the slice may be left out for a shrunk program."""
        return False

    def meet(self, known: Sequence[KnownProgram]) -> None:
        """Counts a program that leads to known divergences, and runs one of them now and
        then: it must show the signature of its entry."""
        if not known:
            return
        self.met += 1
        if self.met % KNOWN_SHARE == 1:
            chosen = known[self.met // KNOWN_SHARE % len(known)]
            program = chosen.program
            if not (why_too_large(program) or why_unsupported(program, self.backend)):
                self.enter(chosen)

    def enter(self, known: KnownProgram) -> None:
        """Runs a program whose last operation shows a known divergence.

        That it agrees proves nothing if the described operation has left a choice: it may
        have got no slots, for example.
        """
        program, entry = known.program, known.entry
        result = self.execute(program, entry.what in COSTLY)
        divergence = result.divergence
        if divergence is None:
            if known.step not in result.choices:
                self.agreed[entry.id].append(program)
            return
        is_behind = divergence.step >= known.step
        if is_behind and divergence.get_signature(program) == entry.signature:
            tally(self.counts.entered, entry.id)
            return
        self.count_divergence(program, divergence)
        self.report(program, divergence, () if is_behind else self.avoid)

    def report_agreed(self) -> None:
        """Sends a program of each entry that describes operations which agree.

        Where the backend decides what a program leads to, some may: a block may hold by
        chance what it should. So several must, and none show the divergence.
        """
        for name, programs in self.agreed.items():
            if programs[0].rules.leaves_choices and (
                len(programs) < ENOUGH_AGREED or name in self.counts.entered
            ):
                continue
            self.emit(messages.Agreed(name, programs[0].to_json()))

    def emit_found(self, program: Program, divergence: Divergence, **more: Any) -> None:
        """Sends a program that diverges. more: the last fields of `messages.Found`."""
        after = self.counts.programs, self.get_seconds()
        self.emit(messages.Found(program.to_json(), divergence, *after, **more))

    def get_seconds(self) -> float:
        """Of one core: the share of this backend."""
        return round((time.monotonic() - self.started) / self.among, 3)

    def finish(self) -> messages.SliceDone:
        """Reports what the programs have shown together; the sums over them."""
        self.report_agreed()
        self.counts.seconds = self.get_seconds()
        coverage = [(*cell, times) for cell, times in sorted(self.coverage.items())]
        return messages.SliceDone(self.counts, coverage, self.digest.hexdigest())


class Slice(Side, ABC, Generic[T]):
    """Makes programs, and runs them on the backend of its task.

    Args:
        worker, backend, task: see `Side`.
        others: run the programs beside it, each as it declares them.
    """

    def __init__(
        self, worker: Runner, backend: Backend, task: T, others: Sequence[Side] = ()
    ) -> None:
        super().__init__(worker, backend, task, task.known)
        self.task, self.others = task, others
        self.sides: Sequence[Side] = [self, *others]
        for side in self.sides:
            side.among = len(self.sides)
        self.runs = 0

    @abstractmethod
    def generate(self) -> None:
        """Makes the programs, and calls `count` with each."""

    def check(self) -> messages.SliceDone:
        """Runs all programs.

        Raises:
            Unavailable: a driver hangs again and again.
        """
        self.worker.fatal = frozenset(self.task.fatal)
        try:
            self.generate()
        finally:
            self.worker.fatal = frozenset()
        for side in self.others:
            side.emit(side.finish())
        return self.finish()

    def count(self, program: Program) -> int:
        """Runs one program and counts it.

        Returns:
            The number of its operations before the first that diverged.
        """
        for side in self.sides:
            side.counts.programs += 1
        ran = self.run(program)
        for side, own, result in ran:
            side.include(own, result)
        found = [result.divergence for _, _, result in ran]
        return min(one.step if one else len(program.ops) for one in found)

    def run(self, program: Program) -> list[tuple[Side, Program, Result]]:
        """Runs a program; shrinks and reports divergences that are new.

        Returns:
            For each backend the program as it declares it, and the result.
        """
        every = is_watched(self.runs)
        self.runs += 1
        programs = [program, *(side.adapt(program) for side in self.others)]
        if self.others and not any(side.backend.execute for side in self.sides):
            results = self.execute_together(programs, every)
        else:
            results = [
                side.execute(own, every, side.avoid)
                for side, own in zip(self.sides, programs, strict=True)
            ]
        ran = list(zip(self.sides, programs, results, strict=True))
        for side, own, result in ran:
            side.judge(own, result)
        return ran

    def execute_together(self, programs: Sequence[Program], every: bool) -> list[Result]:
        """Runs a program on all backends beside each other; it runs again, alone, where
        it must."""
        self.take_turn()
        record = self.worker.record
        body = record.begin(programs[0], self.worker.asked)
        runs = []
        for side, own in zip(self.sides, programs, strict=True):
            side.digest.update(body)
            place = side.coverage, side.announce, side.avoid
            runs.append(Run(own, side.backend, every, *place))
        run_together(runs)
        record.end()
        return [
            side.execute(one.program, every, side.avoid)
            if one.is_apart
            else side.note_margins(one.result)
            for side, one in zip(self.sides, runs, strict=True)
        ]


def tidy(program: Program, result: Result) -> tuple[Program, Divergence]:
    """Returns a program that diverges without the steps that were left out, since it is
    to show the same where they are not; and its divergence."""
    assert result.divergence is not None
    before = sum(number < result.divergence.step for number in result.left_out)
    divergence = replace(result.divergence, step=result.divergence.step - before)
    return leave_out(program, result.left_out), divergence


def make_drawer(
    backend: Backend,
    task: messages.SliceTask | messages.SurveyDomain,
    drawer: type[Drawer] = Drawer,
) -> Drawer:
    """Draws programs of a kind as the backend declares it, and avoids its ledger."""
    declared = backend.contracts[task.contract][task.kind]
    avoid = load_ledger(backend.ledger, backend.name, task.kind)
    return drawer(task.contract, task.kind, declared, backend.dtypes, avoid)


# --- programs that a generator draws ----------------------------------------------------


DERIVED = 12
"""After every 12th program, one that is derived from it runs as well. The reference's
answers to both are compared elsewhere."""


class RandomSlice(Slice[RandomTask]):
    """Programs drawn from a seed."""

    def generate(self) -> None:
        task = self.task
        seed = get_seed(task.seed, task.contract, task.kind, task.number)
        self.drawer = make_drawer(self.backend, task, DRAWERS[task.generator])
        self.drawer.aim_at({*task.rare})
        if task.corpus is not None:
            self.drawer.start_from(self.list_corpus(task.corpus))
        draw = self.drawer.draw
        GENERATORS[task.generator](task.programs, seed, draw, self.consume)
        if task.corpus is not None:
            for program in self.drawer.list_kept():
                cells = [*find_cells(program)]
                self.worker.emit(messages.Kept(program.to_json(), cells))

    def list_corpus(self, documents: Sequence[messages.Document]) -> list[Program]:
        """Lists the given programs that the backend may be asked to run."""
        programs = [parse_program(one, "a program of the corpus") for one in documents]
        return [one for one in programs if self.may_start_from(one)]

    def may_start_from(self, program: Program) -> bool:
        if program.kind != self.task.kind or not self.is_allowed(program):
            return False
        declared = self.backend.contracts[program.contract][program.kind]
        return declared.refuses or not breaks_usage(program)

    def is_enough(self, small: Program) -> bool:
        return len(small.ops) <= self.task.enough

    def consume(self, program: Program) -> None:
        if self.is_over:
            return
        known = list(self.drawer.known)
        self.drawer.learn(program, self.count(program))
        self.meet(known)
        programs = self.counts.programs
        if programs % DERIVED == 0 and self.backend.execute is None:
            derived = derive_one(program, programs // DERIVED)
            if derived and self.is_allowed(derived):
                self.run(derived)

    def is_allowed(self, program: Program) -> bool:
        """Whether the backend declares it, and no entry of the ledger describes it."""
        if why_unsupported(program, self.backend):
            return False
        return find_known(program, self.avoid) is None


def get_seed(seed: int, contract: str, kind: str, number: int) -> int:
    """The seed of a slice, which does not depend on the backend or on the worker."""
    digest = hashlib.sha256(json.dumps([seed, contract, kind, number]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


# --- programs of a set of vectors -------------------------------------------------------


class GivenSlice(Slice[GivenTask]):
    """Programs that were drawn elsewhere, as far as the backend declares them."""

    def generate(self) -> None:
        for document in self.task.programs:
            program = self.adapt(parse_program(document, "program"))
            why = self.why_left_out(program)
            if why is not None:
                tally(self.counts.undeclared, why)
            elif known := find_known(program, self.avoid):
                self.counts.avoided += 1
                self.meet([known])
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
        config, rules = dict(program.config), program.rules
        for name in WITHOUT_EFFECT:
            default = [rules.config[name]["default"]] if name in rules.opt_in else ()
            values = declared.get(name, default)
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
    return Walk(rules, world, partial(drawer.leaves_out, world.config))


class ExhaustiveSlice(Slice[ExhaustiveTask]):
    """The programs with one beginning."""

    def generate(self) -> None:
        task = self.task
        drawer = make_drawer(self.backend, task)
        walk = make_walk(drawer, task.size, self.backend)
        start = walk.follow(tuple(task.path), task.covered)
        for branch in walk.find_longest(start, task.depth):
            self.count(walk.make_program(branch))
            self.counts.covered += branch.covered
            self.counts.avoided = walk.avoided
            self.meet(list(drawer.known))
            drawer.known.clear()
        self.counts.avoided = walk.avoided
        self.meet(list(drawer.known))


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
    known = [[entry.id, entry.document.when] for entry in drawer.avoid]
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
