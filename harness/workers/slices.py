"""Generates slices of programs, and runs them on one or more backends."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.document import drop_defaults
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import Result, Run, fit_program, run_together
from lockstep.harness.execution.metamorphic.reference import derive_one
from lockstep.harness.execution.record import make_body
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk, fit
from lockstep.harness.programs.ledger import (
    Entry,
    find_known,
    load_ledger,
    why_unsupported,
)
from lockstep.harness.programs.program import Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.backend_run import BackendRun
from lockstep.harness.workers.messages import (
    ExhaustiveTask,
    RandomTask,
    SurveyDomain,
    Surveyed,
)
from lockstep.harness.workers.runner import Runner

# --- a slice of the programs for one kind of one backend --------------------------------


WATCHED = 16
"""In a slice, one program in WATCHED runs with every check."""


def is_watched(number: int) -> bool:
    """Returns whether program `number` of a slice, from 0, runs with every check. The
    first program never runs with every check: it is the simplest program that Hypothesis
    draws."""
    return number % WATCHED == WATCHED // 2


def choose_first(number: int, count: int) -> int:
    """Returns the index of the backend that runs each step of program `number` first.

    The backends take turns, also among the programs with every check. With a fixed order,
    a bug could stay hidden: if a backend fails to write its data, memory that the
    previous backend has freed could always contain the same data.
    """
    return (number + number // WATCHED) % count


class Slice(BackendRun):
    """Generates programs, and runs them on the backend of the task and the followers.

    Args:
        worker, backend, task: see `BackendRun`.
        followers: the runs of further backends. Each program is adapted to the
            declarations of these backends.
    """

    def __init__(
        self,
        worker: Runner,
        backend: Backend,
        task: Any,
        followers: Sequence[BackendRun] = (),
    ) -> None:
        super().__init__(worker, backend, task, task.known)
        self.task, self.followers, self.runs = task, followers, 0
        self.group: Sequence[BackendRun] = [self, *followers]
        backends = [*zip(task.knowing, (run.backend for run in self.group), strict=True)]
        for number, member in enumerate(self.group):
            beside = dict(backends[number + 1 :] + backends[:number])
            member.joined = replace(member.backend, beside=beside)

    def generate(self) -> None:
        """Generates the programs, and calls `count` with each program."""
        raise NotImplementedError

    def check(self) -> messages.SliceDone:
        """Runs all programs.

        Raises:
            Unavailable: a driver has hung on several programs.
        """
        self.worker.fatal = frozenset(self.task.fatal)
        try:
            self.generate()
        finally:
            self.worker.fatal = frozenset()
        for follower in self.followers:
            follower.emit(follower.finish())
        return self.finish()

    def count(self, program: Program) -> None:
        """Runs and counts one program."""
        for member in self.group:
            member.counts.programs += 1
        for member, adapted, result in self.run(program):
            member.include(adapted, result)

    def run(self, program: Program) -> list[tuple[BackendRun, Program, Result]]:
        """Runs a program on all backends. Shrinks and reports new divergences.

        Returns:
            For each backend the adapted program and the result.
        """
        every_check = is_watched(self.runs)
        self.runs += 1
        backends = (member.backend for member in self.followers)
        programs = [program, *(fit_program(program, backend) for backend in backends)]
        if self.followers and not any(member.backend.execute for member in self.group):
            results = self.execute_together(programs, every_check)
        else:
            results = [
                member.execute(adapted, every_check, member.avoid)
                for member, adapted in zip(self.group, programs, strict=True)
            ]
        runs = list(zip(self.group, programs, results, strict=True))
        for member, adapted, result in runs:
            member.judge(adapted, result)
        return runs

    def execute_together(
        self, programs: Sequence[Program], every_check: bool
    ) -> list[Result]:
        """Runs a program on all backends together, step by step; see `settle`."""
        self.take_turn()
        record = self.worker.record
        record.begin(programs[0], self.worker.backend_name, [*self.joined.beside])
        runs = []
        for member, program in zip(self.group, programs, strict=True):
            watch = Counter[Cell](), member.announce, member.avoid
            runs.append(Run(program, member.backend, every_check, *watch))
        first = choose_first(self.runs, len(runs))
        run_together([*runs[first:], *runs[:first]])
        record.end()
        return [
            settle(member, run, every_check)
            for member, run in zip(self.group, runs, strict=True)
        ]


def settle(member: BackendRun, run: Run, every_check: bool) -> Result:
    """Returns the result of a run together with other backends. If the run diverged or
    has to run alone, repeats it alone and returns the result of the repetition, unless
    the program diverged and agrees alone: a backend may read memory that another has
    freed, or share its state."""
    divergence = run.result.divergence
    if divergence is None and not run.is_apart:
        member.digest.update(make_body(run.program))
        member.coverage.update(run.coverage or ())
        return member.note(run.result)
    alone = member.execute(run.program, every_check, member.avoid)
    if divergence is not None and alone.divergence is None:
        return replace(run.result, divergence=divergence.mark(*member.joined.beside))
    return alone


def make_drawer(
    backend: Backend,
    task: messages.SliceTask | messages.SurveyDomain,
    avoid: Sequence[Entry],
) -> Drawer:
    """Creates a drawer of programs of a kind as the backend declares it.

    avoid: the ledger entries of the backend.
    """
    declared = backend.contracts[task.contract][task.kind]
    return Drawer(task.contract, task.kind, declared, backend.dtypes, avoid)


# --- programs that a generator draws ----------------------------------------------------


DERIVED = 12
"""After every 12th program, a program derived from it runs too. `metamorphic.reference`
compares the reference's answers to such pairs of programs."""


class RandomSlice(Slice):
    """Programs drawn from a seed."""

    def generate(self) -> None:
        # Only a process that draws imports Hypothesis.
        from lockstep.harness.programs.generate.hypothesis import generate

        task: RandomTask = self.task
        seed = get_seed(task.seed, task.contract, task.kind, task.number)
        self.drawer = make_drawer(self.backend, task, self.avoid)
        self.drawer.aim_at({*task.rare})
        for member in self.group:  # with equal duties
            member.duties = self.drawer.duties
        draw = self.drawer.draw
        generate(task.programs, seed, draw, self.consume)

    def is_enough(self, small: Program) -> bool:
        return len(small.ops) <= int(self.task.enough)

    def consume(self, program: Program) -> None:
        if self.is_over:
            return
        entries = list(self.drawer.known)
        self.count(program)
        self.meet(entries)
        programs = self.counts.programs
        if programs % DERIVED == 0 and self.backend.execute is None:
            derived = derive_one(program, programs // DERIVED)
            if derived and self.is_allowed(derived):
                self.run(derived)

    def is_allowed(self, program: Program) -> bool:
        """Returns whether the backend supports a program, and no ledger entry describes
        the program."""
        if why_unsupported(program, self.backend):
            return False
        return find_known(program, self.avoid) is None


def get_seed(seed: int, contract: str, kind: str, number: int) -> int:
    """Returns the seed of a slice, which does not depend on the backend or worker."""
    digest = hashlib.sha256(json.dumps([seed, contract, kind, number]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


# --- all programs over a domain with one beginning --------------------------------------


MAX_PROGRAMS = 10**10
"""The maximum number of programs of an exploration, illegal programs included. That many
programs take weeks."""

BEHIND, LONGEST = 3, 4
"""BEHIND: the number of operations after the common beginning of a slice. LONGEST: the
maximum number of operations in the common beginning."""


def make_walk(drawer: Drawer, size: str, backend: Backend) -> Walk:
    """Creates the tree of programs over the declared part of a domain."""
    rules = drawer.rules
    domain = rules.get_world(drawer.kind, size)
    world = fit(domain, rules, drawer.kind, drawer.declared, backend.dtypes)
    return Walk(rules, world, partial(drawer.leaves_out, world.config))


class ExhaustiveSlice(Slice):
    """All programs of a domain with a common beginning."""

    def generate(self) -> None:
        task: ExhaustiveTask = self.task
        drawer = make_drawer(self.backend, task, self.avoid)
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
    """Computes the domain of an exploration and the beginnings of its slices.

    Raises:
        UsageError: there are too many programs.
    """
    avoid = load_ledger(backend.ledger, backend.name, task.kind)
    drawer = make_drawer(backend, task, avoid)
    walk = make_walk(drawer, task.size, backend)
    world, depth, moves = walk.world, task.depth, len(walk.world.moves)
    if moves**depth > MAX_PROGRAMS:
        raise UsageError(
            f"--depth {depth}: {moves} operations make up to {moves**depth:.0e}"
            " programs; choose a depth of at most"
            f" {int(math.log(MAX_PROGRAMS, moves))}, or a smaller --size"
        )
    length = min(LONGEST, max(1, depth - BEHIND))
    branches = list(walk.find_longest(ROOT, length))
    return Surveyed(
        moves=list(world.moves),
        symmetries=len(world.symmetries),
        config=drop_defaults(world.config, walk.rules.config),
        parts=[(list(branch.path), branch.covered) for branch in branches],
        avoided=walk.avoided,
    )
