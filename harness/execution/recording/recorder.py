"""Runs a program and keeps both sides of its steps, as far as they are drawn.

A worker does this: what is drawn is made where the arrays are, and is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Held, Op, agrees, list_allowed
from lockstep.harness.contracts.operation import Step as Walked
from lockstep.harness.execution.compare import Difference
from lockstep.harness.execution.executor import Result, Run, run
from lockstep.harness.execution.recording.drawing import Known, Told, draw_step
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.words import describe_outcome, tell_tokens

Note = Callable[[Program], object]

OnStep = Callable[[int], None]


@dataclass
class Kept:
    """One step. got: None as long as the backend has not answered. told: see
    `System.tell_held`."""

    number: int
    op: Op
    skipped: str | None = None
    expected: Answer | None = None
    got: Answer | None = None
    held: Sequence[Held] = ()
    told: Told = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Recorder(Run):
    """A run whose first and last steps are kept.

    until: after so many steps the reference goes on alone. note: is called with the
    program before it runs.
    """

    until: int
    bounds: Bounds
    note: Note

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept: list[Kept] = []
        self.now = Kept(0, {})
        self.born: dict[int, int] = {}

    def run(self) -> Result:
        self.note(self.program)
        whole, steps = self.program, self.steps
        if self.until:
            self.program = replace(whole, ops=whole.ops[: self.until])
            self.steps = islice(steps, self.until)
            super().run()
            self.program = whole
        if self.result.divergence is None:
            for step in steps:
                self.begin(step)
                if step.skipped is None:
                    self.run_reference(step)
                else:
                    self.result.skip(step.skipped)
        return self.result

    def open_system(self) -> Any:
        system = super().open_system()
        system.tell_layout()
        return system

    # --- what is kept -------------------------------------------------------------------

    def begin(self, step: Walked) -> None:
        super().begin(step)
        self.now = Kept(step.number, step.op, step.skipped)
        first = step.model.tag
        tags = range(first, first + step.operation.count_tags(step.op))
        self.born.update(dict.fromkeys(tags, step.number))
        if self.is_kept(step.number):
            self.kept.append(self.now)
        self.keep_held(step)

    def is_kept(self, step: int) -> bool:
        bounds = self.bounds
        return step < bounds.first or step >= len(self.program.ops) - bounds.last

    def run_reference(self, step: Walked) -> Answer:
        self.now.expected = super().run_reference(step)
        self.keep_held(step)
        return self.now.expected

    def run_backend(self, step: Walked) -> Answer:
        self.now.got = super().run_backend(step)
        return self.now.got

    def take(self, step: Walked) -> tuple[Answer, Difference | None]:
        try:
            return super().take(step)
        finally:
            if self.is_kept(step.number):
                self.now.told = self.system.tell_held()

    def keep_held(self, step: Walked) -> None:
        if self.is_kept(self.now.number):
            self.now.held = step.model.list_held(step.op)

    # --- what is drawn ------------------------------------------------------------------

    def draw(self) -> list[Step]:
        """The steps that were kept, in order; with pictures from the last one backwards,
        as far as the bounds go."""
        divergence, left = self.result.divergence, self.bounds.squares
        drawn: list[Step] = []
        for kept in reversed(self.kept):
            is_last = divergence is not None and kept.number == divergence.step
            step = self.draw_one(kept)
            if not is_last:
                left -= step.count_squares()
                if left < 0:
                    step = replace(step, parts=(), facts=(), is_drawn=False)
            drawn.append(step)
        return drawn[::-1]

    def draw_one(self, kept: Kept) -> Step:
        operation = self.rules.operations[kept.op["op"]]
        expected = choose_answer(kept.expected or {}, kept.got)
        return draw_step(
            Step(
                kept.number,
                operation.describe(kept.op),
                kept.skipped,
                describe_outcome(kept.skipped, kept.op, expected),
                answered=kept.got is not None,
            ),
            (expected, kept.got),
            kept.held,
            Known({}, get_places(kept.held), self.born),
            lambda row: operation.describe_row(kept.op, row),
            self.bounds,
            kept.told,
        )


def choose_answer(expected: Answer, got: Answer | None) -> Answer:
    """Returns the expected answer; of several, the one that came, or the first."""
    allowed = list_allowed(expected)
    return next((answer for answer in allowed if agrees(answer, got)), allowed[0])


def get_places(held: Sequence[Held]) -> dict[int, Any]:
    """tag → where the first cache that holds it has it."""
    return {place.tag: place for _, places in reversed(held) for place in places}


def record(
    program: Program,
    backend: Backend,
    bounds: Bounds,
    until: int | None,
    wanted: str | None,
    note: Note,
    on_step: OnStep,
) -> dict[str, Any]:
    """Both sides of a program, step by step, up to its first divergence.

    until: the steps in which the backend takes part, None for all. wanted: the signature
    that is looked for. A backend that brings its own `execute` has no steps: of these
    there is the reference's side only.
    """
    is_alone = backend.execute is not None
    steps = len(program.ops) if until is None else until

    def record_once(program: Program) -> Recorder:
        """With the costly checks and without them, as a program is replayed: to watch an
        array can hide a bug in it, or show another one first.
        The run that fails as `wanted` says, if one does; or else the first that fails."""
        recorders = []
        for every in (True, False):
            own, until = (program, backend, every, None, on_step), steps * (not is_alone)
            recorder = Recorder(*own, until=until, bounds=bounds, note=note)
            divergence = recorder.run().divergence
            if divergence and divergence.get_signature(program) == wanted:
                return recorder
            recorders.append(recorder)
            if is_alone or not steps:
                break
        failed = [one for one in recorders if one.result.divergence]
        return (failed or recorders)[0]

    recorder = record_once(program)
    divergence = recorder.result.divergence
    if divergence is not None and divergence.step + 1 < len(program.ops):
        # The steps that lead there are the last ones of a program that ends there.
        program = replace(program, ops=program.ops[: divergence.step + 1])
        recorder = record_once(program)
        divergence = recorder.result.divergence
    if is_alone and until is None:
        divergence = run(program, backend, every=True, wanted=wanted).divergence
    return {
        "steps": [asdict(step) for step in recorder.draw()],
        "divergence": divergence and divergence.to_json(),
        "stories": list(tell_tokens(program, divergence)) if divergence else [],
        "versions": dict(backend.versions),
        "device": backend.device,
    }
