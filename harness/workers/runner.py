"""Runs programs with the write-ahead record, and shrinks failing programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import Coverage, Result, run
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.shrink import Clock, Shrinker, Shrunk, SideFailures
from lockstep.harness.programs.ledger import Entry, find_known, why_unsupported
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    breaks_usage,
    why_too_large,
)
from lockstep.harness.workers.messages import Event

Emit = Callable[[Event], None]

COSTLY = ("alias", "attention")
"""The values of `Divergence.what` that only costly checks find."""


class Runner:
    """Runs programs in this process.

    Attributes:
        record: the write-ahead record.
        emit: sends an event to the pool.
        backend_name: the name of the backend in the task.
        fatal: the digests of programs that would end the process, which are skipped.
    """

    def __init__(self, record: Record, emit: Emit) -> None:
        self.record, self.emit = record, emit
        self.backend_name = ""
        self.fatal: frozenset[str] = frozenset()

    def note(self, program: Program, beside: Iterable[str] = ()) -> None:
        """Records that work on a program begins, so that the pool does not see a hang."""
        self.record.begin(program, self.backend_name, [*beside])

    def run(
        self,
        program: Program,
        backend: Backend,
        every_check: bool,
        wanted: str | None = None,
        avoid: Sequence[Entry] = (),
        coverage: Coverage | None = None,
    ) -> Result:
        """Runs a program and updates the record. wanted, avoid, coverage: see
        `executor.run`."""
        self.note(program, backend.beside)
        if self.fatal and program.digest() in self.fatal:
            return Result()
        step = self.record.step
        result = run(program, backend, every_check, coverage, step, wanted, avoid)
        self.record.end()
        return result

    def run_both(
        self, program: Program, backend: Backend, avoid: Sequence[Entry] = ()
    ) -> Result:
        """Runs a program with every check. If it agrees, runs it again without the costly
        checks, because reading an array can hide a bug. If `meta` has a signature, the
        first run looks for that signature."""
        said = program.meta.get("signature")
        wanted = said if isinstance(said, str) else None
        result = self.run(program, backend, True, wanted, avoid)
        if result.divergence is not None:
            return result
        return self.run(program, backend, backend.execute is not None, avoid=avoid)

    def shrink(
        self,
        program: Program,
        divergence: Divergence,
        backend: Backend,
        seconds: float,
        avoid: Sequence[Entry] = (),
        clock: Clock = time.monotonic,
    ) -> Shrunk:
        """Shrinks a program to a shorter program with the same signature.

        The result has no invalid calls if the given program has none. If the failure does
        not occur in every run, the result is the given program, up to the divergence. If
        it never occurs alone, it is shrunk beside as few of `Backend.beside` as suffice.

        Args:
            program: the diverging program.
            divergence: the first divergence of the program.
            backend: the backend that runs the candidates.
            seconds: the time limit.
            avoid: the known divergences; candidates that lead to them are rejected.
            clock: the clock that measures `seconds`.
        """

        def search(*names: str) -> Search:
            beside = {name: backend.beside[name] for name in names}
            chosen = replace(backend, beside=beside)
            return Search(self, program, divergence, chosen, avoid)

        alone, names = search().shrink(seconds, clock), [*backend.beside]
        if not names or alone.flaky is None or alone.flaky.failed:
            return alone
        for name in backend.beside:
            fewer = [kept for kept in names if kept != name]
            names = fewer if fewer and search(*fewer).repeat(program) else names
        together = search(*names).shrink(seconds, clock)
        if together.flaky is not None:
            return together if together.flaky.failed else alone
        small, backend = together.program, replace(backend, beside={})
        result = self.run_both(small, backend, avoid)
        if result.divergence is None:
            return together
        return self.shrink(small, result.divergence, backend, seconds, avoid, clock)


REPEATS = 3
"""The number of runs of a shrunk program. A program that does not fail in all of these
runs is flaky."""


class Search:
    """The search for the shortest program with one signature.

    Attributes:
        program: the given program, up to its divergence.
        divergence: the divergence of `program`.
        every_check: whether costly checks run at every step.
        latest: the divergence of the candidate that failed last.
        shown: the divergence of the best program so far.
    """

    def __init__(
        self,
        runner: Runner,
        program: Program,
        divergence: Divergence,
        backend: Backend,
        avoid: Sequence[Entry],
    ) -> None:
        self.runner, self.backend, self.avoid = runner, backend, avoid
        self.signature = divergence.get_signature(program)
        self.program = replace(program, ops=program.ops[: divergence.step + 1])
        self.divergence = self.latest = self.shown = divergence
        self.side_failures = SideFailures()
        self.is_invalid = backend.execute is not None or breaks_usage(self.program)
        self.every_check = self.needs_every_check()

    def needs_every_check(self) -> bool:
        """Returns whether the divergence disappears without costly checks at every step.

        Costly checks at sampled steps may miss the divergence in a candidate, for which
        other steps are sampled.
        """
        if self.backend.execute is not None:
            return True
        if self.divergence.what in COSTLY:
            return self.find(self.program, every_check=True) is not None
        return self.find(self.program, every_check=False) is None

    def find(self, candidate: Program, every_check: bool) -> Divergence | None:
        """Returns the divergence of a candidate if it has the signature. Keeps
        divergences with other signatures in `side_failures`."""
        result = self.runner.run(
            candidate, self.backend, every_check, self.signature, self.avoid
        )
        divergence = result.divergence
        if divergence is None or result.left_out:
            return None
        if not self.is_invalid and breaks_usage(candidate):
            return None
        if divergence.get_signature(candidate) == self.signature:
            return divergence
        self.side_failures.add(candidate, divergence)
        return None

    def fails(self, candidate: Program) -> bool:
        divergence = self.find(candidate, self.every_check)
        self.latest = divergence or self.latest
        return divergence is not None

    def cut(self, failing: Program) -> Program:
        """Removes the operations after the failing step of the last failing candidate,
        which becomes the best program."""
        self.shown = self.latest
        return replace(failing, ops=failing.ops[: self.latest.step + 1])

    def is_declared(self, candidate: Program) -> bool:
        if why_too_large(candidate) or why_unsupported(candidate, self.backend):
            return False
        return find_known(candidate, self.avoid) is None

    def shrink(self, seconds: float, clock: Clock) -> Shrunk:
        if not self.fails(self.program):
            return self.give_up(self.repeat(self.program, REPEATS - 1))
        self.shown = self.latest
        search = self.fails, seconds, self.is_declared, self.cut, clock
        shrinker = Shrinker(self.program, *search)
        best = shrinker.shrink()
        unshrunk = shrinker.why_unshrunk()
        failed = self.repeat(best)
        if failed < REPEATS:
            is_same = best == self.program
            return self.give_up(failed if is_same else self.repeat(self.program))
        others = self.side_failures.shortest
        return Shrunk(best, self.shown, others, unshrunk=unshrunk)

    def give_up(self, failed: int) -> Shrunk:
        """Gives up shrinking, because no shorter program reliably shows the same failure.
        Returns the given program, and how often it failed again."""
        flaky = Flaky(failed, REPEATS)
        seen = self.latest if self.backend.beside else self.divergence
        return Shrunk(self.program, seen, self.side_failures.shortest, flaky)

    def repeat(self, program: Program, runs: int = REPEATS) -> int:
        """Runs a program. Returns in how many of the runs it shows the signature."""
        return sum(self.fails(program) for _ in range(runs))
