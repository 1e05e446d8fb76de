"""Runs a program and keeps both sides of its steps, as far as they are drawn.

A worker does this: what is drawn is made where the arrays are, and is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.base import Answer, Held, Op
from lockstep.harness.execution.executor import Divergence, Result, Run
from lockstep.harness.execution.metamorphic.reference import REFERENCE
from lockstep.harness.execution.recording.drawing import draw_step
from lockstep.harness.execution.recording.grid import Known
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.explain import MOST, describe_token, list_lives
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.programs.supported import why_unsupported
from lockstep.harness.workers.registry import Unavailable

if TYPE_CHECKING:
    from lockstep.harness.workers.worker import Worker

MAX_STORY = 1 << 21
"""Operations times tokens of a program whose tokens' lives are told: the walk looks at
every token after every step."""


@dataclass
class Kept:
    """One step. got: None as long as the backend has not answered."""

    number: int
    op: Op
    skipped: str | None = None
    expected: Answer | None = None
    got: Answer | None = None
    held: Sequence[Held] = ()


class Recorder(Run):
    """A run whose first and last steps are kept.

    until: after so many steps the reference goes on alone.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        every: bool,
        until: int,
        bounds: Bounds,
        worker: Worker,
    ) -> None:
        super().__init__(program, backend, every, on_step=self.begin_step)
        self.until, self.bounds, self.worker = until, bounds, worker
        self.kept: list[Kept] = []
        self.now = Kept(0, {})
        self.born: dict[int, int] = {}

    def run(self) -> Result:
        whole = self.program
        self.worker.record.begin(whole, self.worker.asked)
        if self.until:
            self.program = replace(whole, ops=whole.ops[: self.until])
            super().run()
            self.program = whole
        if self.result.divergence is None:
            for step, op in enumerate(whole.ops[self.until :], self.until):
                self.begin_step(step)
                if not self.is_skipped(op):
                    self.expect(op)
                    self.model.tag += self.rules.operations[op["op"]].tokens(op)
        return self.result

    def open_subject(self) -> Any:
        subject = super().open_subject()
        subject.tell_layout()
        return subject

    # --- what is kept -------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        self.worker.record.step(step)
        ops = self.program.ops
        self.now = Kept(step, ops[step])
        count = self.rules.operations[ops[step]["op"]].tokens(ops[step])
        self.born.update(
            dict.fromkeys(range(self.model.tag, self.model.tag + count), step)
        )
        if self.is_kept(step):
            self.kept.append(self.now)

    def is_kept(self, step: int) -> bool:
        bounds = self.bounds
        return step < bounds.first or step >= len(self.program.ops) - bounds.last

    def is_skipped(self, op: Op) -> bool:
        self.now.skipped = self.rules.operations[op["op"]].illegal(op, self.model)
        self.keep_held(op)
        return super().is_skipped(op)

    def expect(self, op: Op) -> Answer:
        self.now.expected = super().expect(op)
        self.keep_held(op)
        return self.now.expected

    def observe(self, op: Op) -> Answer:
        self.now.got = super().observe(op)
        return self.now.got

    def keep_held(self, op: Op) -> None:
        if self.is_kept(self.now.number):
            self.now.held = self.rules.list_held(op, self.model)

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
        return draw_step(
            Step(
                kept.number,
                operation.describe(kept.op),
                kept.skipped,
                answered=kept.got is not None,
            ),
            (kept.expected or {}, kept.got),
            kept.held,
            Known({}, get_places(kept.held), self.born),
            lambda row: operation.describe_row(kept.op, row),
            self.bounds,
        )


def get_places(held: Sequence[Held]) -> dict[int, Any]:
    """tag → where the first cache that holds it has it."""
    return {place.tag: place for _, places in reversed(held) for place in places}


def record(worker: Worker, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides of a program, step by step, up to its first divergence.

    task: "program", "bounds" (fields of `Bounds`), "until": the steps in which the
    backend takes part, null for all; "wanted": the signature that is looked for. With the
    backend `reference` there is only its side.
    """
    program = parse_program(task["program"], "program")
    bounds = Bounds(**task["bounds"])
    until = len(program.ops) if task["until"] is None else task["until"]
    if backend is REFERENCE:
        until = 0
    elif why := why_unsupported(program, backend):
        raise Unavailable(why)
    recorder = run_both(worker, program, backend, until, bounds, task["wanted"])
    divergence = recorder.result.divergence
    if divergence is not None and divergence.step + 1 < len(program.ops):
        # The steps that lead there are the last ones of a program that ends there.
        program = replace(program, ops=program.ops[: divergence.step + 1])
        recorder = run_both(worker, program, backend, until, bounds, task["wanted"])
        divergence = recorder.result.divergence
    if backend is REFERENCE and task["until"] is None:
        divergence = worker.run_both(program, backend).divergence
    return {
        "steps": [asdict(step) for step in recorder.draw()],
        "divergence": divergence and divergence.to_json(),
        "stories": list(tell_tokens(program, divergence)) if divergence else [],
        "versions": dict(backend.versions),
        "device": backend.device,
    }


def run_both(
    worker: Worker,
    program: Program,
    backend: Backend,
    until: int,
    bounds: Bounds,
    wanted: str | None,
) -> Recorder:
    """With every check at every step and with the costly ones at some, as a program is
    replayed: to watch an array can hide a bug in it, or show another one first. The run
    that fails as `wanted` says, if one does; or else the first that fails."""
    recorders = []
    for every in (True, False):
        recorder = Recorder(program, backend, every, until, bounds, worker)
        divergence = recorder.run().divergence
        if divergence and divergence.get_signature(program) == wanted:
            return recorder
        recorders.append(recorder)
        if not until:
            break
    failed = [one for one in recorders if one.result.divergence]
    return (failed or recorders)[0]


def tell_tokens(program: Program, divergence: Divergence) -> Iterator[str]:
    """Where the tokens come from that a divergence is about."""
    if not divergence.tokens or len(program.ops) * program.count_tokens() > MAX_STORY:
        return
    lives = list_lives(program, divergence.step)
    for tag in list(dict.fromkeys(divergence.tokens))[:MOST]:
        yield describe_token(tag, lives.get(tag))
