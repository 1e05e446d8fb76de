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
class RecordedStep:
    """One step. got: None as long as the backend has not answered. reported: see
    `System.tell_held`."""

    number: int
    op: Op
    skipped: str | None = None
    expected: Answer | None = None
    got: Answer | None = None
    contents: Sequence[Held] = ()
    reported: Told = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Recorder(Run):
    """A run whose first and last steps are kept.

    until: number of steps after which the reference goes on alone. note: called with the
    program before it runs.
    """

    until: int
    bounds: Bounds
    note: Note

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recorded: list[RecordedStep] = []
        self.current = RecordedStep(0, {})
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
        self.current = RecordedStep(step.number, step.op, step.skipped)
        first = step.model.tag
        tags = range(first, first + step.operation.count_tags(step.op))
        self.born.update(dict.fromkeys(tags, step.number))
        if self.is_recorded(step.number):
            self.recorded.append(self.current)
        self.record_contents(step)

    def is_recorded(self, step: int) -> bool:
        bounds = self.bounds
        return step < bounds.first or step >= len(self.program.ops) - bounds.last

    def run_reference(self, step: Walked) -> Answer:
        self.current.expected = super().run_reference(step)
        self.record_contents(step)
        return self.current.expected

    def run_backend(self, step: Walked) -> Answer:
        self.current.got = super().run_backend(step)
        return self.current.got

    def take(self, step: Walked) -> tuple[Answer, Difference | None]:
        try:
            return super().take(step)
        finally:
            if self.is_recorded(step.number):
                self.current.reported = self.system.tell_held()

    def record_contents(self, step: Walked) -> None:
        if self.is_recorded(self.current.number):
            self.current.contents = step.model.list_held(step.op)

    # --- what is drawn ------------------------------------------------------------------

    def draw(self) -> list[Step]:
        """The steps that were kept, in order; with pictures from the last one backwards,
        as far as the bounds go."""
        divergence, squares = self.result.divergence, self.bounds.squares
        drawn: list[Step] = []
        for recorded in reversed(self.recorded):
            is_last = divergence is not None and recorded.number == divergence.step
            step = self.draw_recorded(recorded)
            if not is_last:
                squares -= step.count_squares()
                if squares < 0:
                    step = replace(step, parts=(), facts=(), is_drawn=False)
            drawn.append(step)
        return drawn[::-1]

    def draw_recorded(self, recorded: RecordedStep) -> Step:
        operation = self.rules.operations[recorded.op["op"]]
        expected = choose_answer(recorded.expected or {}, recorded.got)
        return draw_step(
            Step(
                recorded.number,
                operation.describe(recorded.op),
                recorded.skipped,
                describe_outcome(recorded.skipped, recorded.op, expected),
                answered=recorded.got is not None,
            ),
            (expected, recorded.got),
            recorded.contents,
            Known({}, get_places(recorded.contents), self.born),
            lambda row: operation.describe_row(recorded.op, row),
            self.bounds,
            recorded.reported,
        )


def choose_answer(expected: Answer, got: Answer | None) -> Answer:
    """Returns the expected answer; of several, the one that came, or the first."""
    allowed = list_allowed(expected)
    return next((answer for answer in allowed if agrees(answer, got)), allowed[0])


def get_places(contents: Sequence[Held]) -> dict[int, Any]:
    """tag → where the first cache that holds it has it."""
    return {token.tag: token for _, places in reversed(contents) for token in places}


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

    until: number of steps that the backend runs; None for all. wanted: the signature to
    look for. A backend with its own `execute` has no steps; then only the reference is
    shown.
    """
    is_alone = backend.execute is not None
    steps = len(program.ops) if until is None else until

    def record_once(program: Program) -> Recorder:
        """Runs with and without the costly checks, as a replay does: watching an array
        can hide a bug, or show another one first. Returns the run with the signature
        `wanted`, or else the first that fails."""
        recorders = []
        for every in (True, False):
            arguments, until = (
                (program, backend, every, None, on_step),
                steps * (not is_alone),
            )
            recorder = Recorder(*arguments, until=until, bounds=bounds, note=note)
            divergence = recorder.run().divergence
            if divergence and divergence.get_signature(program) == wanted:
                return recorder
            recorders.append(recorder)
            if is_alone or not steps:
                break
        failed = [recorder for recorder in recorders if recorder.result.divergence]
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
