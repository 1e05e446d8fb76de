"""Runs the programs of a slice on one backend, and reports diverging programs."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.core.payload import merge_margins
from lockstep.harness.execution.comparisons import measure
from lockstep.harness.execution.executor import Coverage, Result
from lockstep.harness.execution.record import make_body
from lockstep.harness.execution.shrink import make_busy_clock
from lockstep.harness.programs.condition import ParsedDuty
from lockstep.harness.programs.ledger import (
    Entry,
    KnownProgram,
    leave_out,
    list_known,
    load_ledger,
    why_unsupported,
)
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    find_states,
    why_too_large,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Shown, tally
from lockstep.harness.workers.runner import COSTLY, Runner

PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0

MOST_TRIED = 8
"""The maximum number of programs per slice and signature that are shrunk because of their
states."""

MAX_HANGS = 2
"""The number of programs on which a driver may hang before the rest of a slice is
skipped."""

KNOWN_SHARE = 20
"""In a slice, the first of every KNOWN_SHARE programs that lead to a known divergence is
also run with the operation that the ledger entry describes."""

ENOUGH_AGREED = 3
"""The number of programs of a slice that must agree before an operation that a ledger
entry describes is reported as agreeing, if a single program may agree by chance."""


class BackendRun:
    """The work for one backend in a slice: counts the programs, and shrinks and reports
    the diverging programs.

    Args:
        worker: the worker that runs the programs.
        backend: the backend that is compared with the reference.
        task: the slice.
        known: signature → the programs that have shown it before.
        number: the index of the backend among the backends of the slice.

    Attributes:
        duties: the duties that the generator heeded.
        joined: the backend beside the other backends of the slice, in their order.
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
        self.reported_cells: set[Cell] = set()
        self.shown = dict(known)
        self.tried: Counter[str] = Counter()
        self.duties: Sequence[ParsedDuty] = ()
        self.avoid = load_ledger(backend.ledger, backend.name, task.kind)
        self.known_count = 0
        self.agreed: defaultdict[str, list[Program]] = defaultdict(list)
        self.digest = hashlib.sha256()
        self.hangs = 0
        self.is_over = False
        self.joined = backend
        self.reported = 0.0
        self.started = time.monotonic()

    def emit(self, event: messages.OfSlice) -> None:
        """Sends an event about this backend."""
        self.worker.emit(messages.OfGroup(self.number, event) if self.number else event)

    def announce(self, step: int) -> None:
        """Records the step that this backend is about to run."""
        self.take_turn()
        self.worker.record.step(step)

    def take_turn(self) -> None:
        """Records that this backend is running now."""
        self.worker.record.side = self.number

    def judge(self, program: Program, result: Result) -> None:
        """Shrinks and reports a new divergence.

        Raises:
            Unavailable: a driver has hung on MAX_HANGS programs.
        """
        if result.divergence is None:
            return
        self.take_turn()
        self.report(*tidy(program, result), self.avoid)
        self.hangs += result.divergence.what == "hang"
        if self.hangs >= MAX_HANGS:  # each hang costs at least a second
            raise Unavailable(
                f"{result.divergence.message}; this was the second program that hangs,"
                " so the rest of the slice is skipped"
            )

    def include(self, program: Program, result: Result) -> None:
        """Counts the result of a program. If the program has skipped a known divergence,
        may also run it; see `meet`."""
        if result.divergence is not None:
            self.count_divergence(program, result.divergence)
        self.counts.steps += result.steps
        if result.steps:
            self.counts.grow(measure(program, result.comparisons))
            tally(self.counts.dtypes, str(program.config["dtype"]))
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
        fresh = [cell for cell in self.coverage if cell not in self.reported_cells]
        self.reported_cells.update(fresh)
        self.emit(messages.Progress(self.counts, fresh))

    def execute(
        self, program: Program, every_check: bool, avoid: Sequence[Entry] = ()
    ) -> Result:
        """Runs a program on this backend, and updates the record and the coverage."""
        self.take_turn()
        self.digest.update(make_body(program))
        result = self.worker.run(
            program, self.backend, every_check, avoid=avoid, coverage=self.coverage
        )
        return self.note(result)

    def note(self, result: Result) -> Result:
        """Adds the margins and the comparisons of a run, and returns its result."""
        self.counts.margins = merge_margins(self.counts.margins, result.margins)
        for name in ("operations", "compared"):
            for key, count in getattr(result.comparisons, name).items():
                tally(getattr(self.counts, name), key, count)
        return result

    def report(
        self, program: Program, divergence: Divergence, avoid: Sequence[Entry]
    ) -> None:
        """Sends a diverging program and its shrunk version if it may show a new bug. Also
        does this for the programs that diverged in other ways during shrinking."""
        if divergence.what == "missing":  # an unimplemented function needs no shrinking
            self.counts.missing.setdefault(divergence.message, divergence.operation)
            return
        waiting = [(program, divergence)]
        while waiting and not self.is_over:
            program, divergence = waiting.pop(0)
            if divergence.what != "missing" and self.is_new(program, divergence):
                waiting += self.shrink(program, divergence, avoid)

    def is_new(self, program: Program, divergence: Divergence) -> bool:
        """Counts a diverging program, and returns whether it may show a new bug.

        It may show a new bug unless an earlier shrunk program with the same signature
        fails in a subset of its abstract states. Of the other programs with this
        signature, the programs with the numbers 2, 4, 8, … are accepted, too.
        """
        signature = divergence.get_signature(program)
        shown = self.shown.setdefault(signature, Shown())
        shown.programs += 1
        states = find_states(program, divergence)
        is_other = not any(map(states.issuperset, shown.states.values()))
        if is_other:
            self.tried[signature] += 1
        is_taken = shown.programs > 1 and shown.programs.bit_count() == 1
        return is_taken or (is_other and self.tried[signature] <= MOST_TRIED)

    def shrink(
        self, program: Program, divergence: Divergence, avoid: Sequence[Entry]
    ) -> list[tuple[Program, Divergence]]:
        """Shrinks a program. Sends the program and its shrunk version.

        Returns:
            A program for each new signature that appeared during shrinking.
        """
        self.emit_found(program, divergence)  # shrinking may be interrupted
        limits = SHRINK_SECONDS, avoid, make_busy_clock()
        small = self.worker.shrink(program, divergence, self.joined, *limits)
        shown = self.shown[divergence.get_signature(program)]
        states = find_states(program, divergence)
        previous = shown.states.get(small.program.digest())
        if previous is None:
            previous = [*find_states(small.program, small.divergence)]
        states &= {*previous}
        shown.states[small.program.digest()] = sorted(states)
        self.emit_found(
            small.program,
            small.divergence,
            original=program.digest(),
            states=sorted(states),
            **small.get_meta(),
        )
        self.is_over = self.is_enough(small.program)
        failures = small.others.items()
        return [failure for name, failure in failures if name not in self.shown]

    def is_enough(self, small: Program) -> bool:
        """Returns whether the rest of the slice may be skipped after a shrunk program."""
        return False

    def meet(self, known: Sequence[KnownProgram]) -> None:
        """Counts a program that leads to known divergences. For one program in
        KNOWN_SHARE, checks that it still shows the signature of the ledger entry."""
        if not known:
            return
        self.known_count += 1
        if self.known_count % KNOWN_SHARE == 1:
            chosen = known[self.known_count // KNOWN_SHARE % len(known)]
            program = chosen.program
            if not (why_too_large(program) or why_unsupported(program, self.backend)):
                self.enter(chosen)

    def enter(self, known: KnownProgram) -> None:
        """Runs a program whose last operation should show a known divergence.

        A program that agrees is not evidence if the contract left the backend a choice in
        the described operation: for example, the operation may have got no slots.
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
        """Sends a program for each ledger entry whose operations agree.

        If the contract leaves choices to the backend, a program may agree by chance: a
        block may happen to have the right contents. In that case at least ENOUGH_AGREED
        programs must agree, and no program may show the divergence.
        """
        for name, programs in self.agreed.items():
            if programs[0].rules.leaves_choices and (
                len(programs) < ENOUGH_AGREED or name in self.counts.entered
            ):
                continue
            self.emit(messages.Agreed(name, programs[0].to_json()))

    def emit_found(self, program: Program, divergence: Divergence, **fields: Any) -> None:
        """Sends a diverging program. fields: further fields of `messages.Found`."""
        after = self.counts.programs, self.get_seconds()
        self.emit(messages.Found(program.to_json(), divergence, *after, **fields))

    def get_seconds(self) -> float:
        """Returns the run time of this backend: the time of the slice divided by the
        number of backends."""
        backends = 1 + len(self.joined.beside)
        return round((time.monotonic() - self.started) / backends, 3)

    def finish(self) -> messages.SliceDone:
        """Reports the ledger entries that agree, and returns the counts of the slice."""
        self.report_agreed()
        self.counts.seconds = self.get_seconds()
        left_out = Counter[Cell]()
        for duty in self.duties:
            left_out.update(duty.left_out)
        cells = (
            [(*cell, times) for cell, times in sorted(counted.items())]
            for counted in (self.coverage, left_out)
        )
        coverage, excluded = cells
        digest = self.digest.hexdigest()
        return messages.SliceDone(self.counts, coverage, digest, excluded)


def tidy(program: Program, result: Result) -> tuple[Program, Divergence]:
    """Returns a diverging program without its skipped steps, and its divergence. The
    program then diverges without a ledger too."""
    assert result.divergence is not None
    step = result.divergence.step
    step -= sum(number < step for number in result.left_out)
    divergence = replace(result.divergence, step=step)
    return leave_out(program, result.left_out), divergence
