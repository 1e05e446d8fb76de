"""Runs a program, and draws the answers of the reference and the backend.

A worker runs this module, because it has the arrays; pictures are small.
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


@dataclass
class RecordedStep:
    """The answers of one step.

    Attributes:
        got: the backend's answer; None if there is none yet.
        contents: the content of the reference.
        reported: see `System.tell_held`.
    """

    number: int
    op: Op
    skipped: str | None = None
    expected: Answer | None = None
    got: Answer | None = None
    contents: Sequence[Held] = ()
    reported: Told = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Recorder(Run):
    """A run whose first and last steps are recorded.

    Attributes:
        until: the number of steps that the backend runs; the reference runs all steps.
        bounds: the limits of the pictures.
        recorded: the recorded steps.
        current: the step that runs.
        born: tag → the step in which the token was written.
    """

    until: int
    bounds: Bounds
    recorded: list[RecordedStep] = field(default_factory=list)
    current: RecordedStep = field(default_factory=lambda: RecordedStep(0, {}))
    born: dict[int, int] = field(default_factory=dict)

    def run(self) -> Result:
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

    # --- recording ----------------------------------------------------------------------

    def begin(self, step: Walked) -> None:
        super().begin(step)
        self.current = RecordedStep(step.number, step.op, step.skipped)
        first = step.model.tag
        tags = range(first, first + step.operation.count_tags(step.op))
        self.born.update(dict.fromkeys(tags, step.number))
        if self.is_recorded(step):
            self.recorded.append(self.current)
        self.record_contents(step)

    def is_recorded(self, step: Walked) -> bool:
        last = len(self.program.ops) - self.bounds.last
        return step.number < self.bounds.first or step.number >= last

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
            if self.is_recorded(step):
                self.current.reported = self.system.tell_held()

    def record_contents(self, step: Walked) -> None:
        if self.is_recorded(step):
            self.current.contents = step.model.list_held(step.op)

    # --- drawing ------------------------------------------------------------------------

    def draw(self) -> list[Step]:
        """Draws the recorded steps, the last step first, until the limit of squares is
        reached. Returns all recorded steps in order."""
        divergence, squares = self.result.divergence, self.bounds.squares
        drawn: list[Step] = []
        for recorded in reversed(self.recorded):
            step = self.draw_recorded(recorded)
            if divergence is None or recorded.number != divergence.step:
                squares -= step.count_squares()
                if squares < 0:
                    step = replace(step, parts=(), facts=(), is_drawn=False)
            drawn.append(step)
        return drawn[::-1]

    def draw_recorded(self, recorded: RecordedStep) -> Step:
        op, got, contents = recorded.op, recorded.got, recorded.contents
        operation = self.rules.operations[op["op"]]
        # Of several allowed answers, draw the backend's answer, or else the first.
        allowed = list_allowed(recorded.expected or {})
        expected = next((x for x in allowed if agrees(x, got)), allowed[0])
        elsewhere = {x.tag: x for _, tokens in reversed(contents) for x in tokens}
        return draw_step(
            Step(
                recorded.number,
                operation.describe(op),
                recorded.skipped,
                describe_outcome(recorded.skipped, op, expected),
                answered=got is not None,
            ),
            (expected, got),
            contents,
            Known({}, elsewhere, self.born),
            lambda row: operation.describe_row(op, row),
            self.bounds,
            recorded.reported,
        )


def record(
    program: Program,
    backend: Backend,
    bounds: Bounds,
    until: int | None,
    wanted: str | None,
    note: Callable[[Program], object],
    on_step: Callable[[int], None],
) -> dict[str, Any]:
    """Records a program up to its first divergence.

    Args:
        program: a complete program.
        backend: the backend. If it has an `execute` function, its run has no steps, so
            the pictures show the reference alone.
        bounds: the limits of the pictures.
        until: the number of steps that the backend runs; None for all.
        wanted: the signature to look for.
        note: a function that is called with each program before it runs.
        on_step: a function that is called with the number of each step before it runs.
    """
    is_alone = backend.execute is not None
    steps = len(program.ops) if until is None else until

    def record_once(program: Program) -> Recorder:
        """Runs a program twice, with and without the costly checks, as a replay does. Two
        runs are needed because watching an array can hide a bug, or show another bug
        first. Returns the run with the wanted signature, or else the first run that
        fails."""
        recorders = []
        for every in (True, False) if steps and not is_alone else (True,):
            recorder = Recorder(
                program=program,
                backend=backend,
                every=every,
                on_step=on_step,
                until=0 if is_alone else steps,
                bounds=bounds,
            )
            note(program)
            divergence = recorder.run().divergence
            if divergence and divergence.get_signature(program) == wanted:
                return recorder
            recorders.append(recorder)
        failed = [recorder for recorder in recorders if recorder.result.divergence]
        return (failed or recorders)[0]

    recorder = record_once(program)
    divergence = recorder.result.divergence
    if divergence is not None and divergence.step + 1 < len(program.ops):
        # The shortened program ends before the divergence.
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
