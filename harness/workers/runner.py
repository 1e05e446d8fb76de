"""Runs programs on backends with the write-ahead record kept, and shrinks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import Record, Result, run
from lockstep.harness.execution.shrink import Clock, Shrinker, Shrunk, SideFailures
from lockstep.harness.programs.ledger import Entry, is_known, why_unsupported
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    breaks_usage,
    why_too_large,
)
from lockstep.harness.workers.messages import Event

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
        return run(program, backend, every=every, on_step=step, wanted=wanted)

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
