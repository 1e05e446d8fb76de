"""Describes the operations that lead to a divergence, for the ledger or a duty.

A description is a condition; see `programs.condition`. Programs are drawn, and each
operation of one name becomes an example that diverges or agrees. A condition is inferred
from one half of the programs, and tested with the other half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.contracts.operation import Answer, Op, Step
from lockstep.harness.core.errors import Unavailable, UsageError
from lockstep.harness.execution.compare import Difference
from lockstep.harness.execution.executor import Run
from lockstep.harness.programs.condition import parse_condition, parse_duties
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.inference import Example, infer, observe
from lockstep.harness.programs.ledger import follow, load_ledger
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers.messages import Described
from lockstep.harness.workers.runner import COSTLY, Runner

FEW = 0.1
"""If a larger share of the operations that a condition describes agrees, an earlier
operation is tried."""

MOST_TRIED = 4
"""The maximum number of operations of a drawn program that are followed by the
operations of the failing program."""


def find_description(
    worker: Runner,
    backend: Backend,
    program: Program,
    divergence: Divergence,
    count: int,
    seed: int,
) -> Described:
    """Describes the last operation of a failing program; if no condition separates most
    of the operations that diverge from those that agree, an earlier operation.

    Args:
        worker, backend: run the programs.
        program: the failing program, up to its divergence.
        divergence: the divergence.
        count: the number of programs that are drawn for each operation.
        seed: the seed of these programs.

    Raises:
        Unavailable: the program does not fail in every run.
    """
    candidates: list[Described] = []
    for step in reversed(range(len(program.ops))):
        described = Search(worker, backend, program, divergence, step).find(count, seed)
        candidates += [described] if described else []
        if described and described.get_mistakes() <= FEW:
            return described
    if not candidates:
        raise Unavailable("the divergence does not occur in every run")
    return min(candidates, key=Described.get_mistakes)


@dataclass(eq=False)
class Watched(Run):
    """A run that keeps the legal operations of one name.

    Attributes:
        operation: the name.
        seen: number of a step → its example.
    """

    operation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: dict[int, Example] = {}

    def ask(self, step: Step) -> tuple[Answer, Difference | None]:
        if step.op["op"] == self.operation:
            self.seen[step.number] = observe(self.rules, step.op, step.model)
        return super().ask(step)


class Search:
    """The search for a condition on one operation of a failing program.

    Args:
        worker, backend, program, divergence: see `find_description`.
        step: the number of the operation.
    """

    def __init__(
        self,
        worker: Runner,
        backend: Backend,
        program: Program,
        divergence: Divergence,
        step: int,
    ) -> None:
        self.worker, self.backend, self.program = worker, backend, program
        self.step, self.operation = step, str(program.ops[step]["op"])
        self.divergence = divergence
        self.signature = divergence.get_signature(program)
        self.every = divergence.what in COSTLY
        self.avoid = load_ledger(backend.ledger, backend.name, program.kind)

    def find(self, count: int, seed: int) -> Described | None:
        """Infers a condition from half of the programs, and tests it with the others.

        Returns None if the operation cannot be described: it is not legal, or the program
        agrees now.
        """
        examples = [*self.list_examples(self.program)]
        if not any(example.diverges for example in examples):
            return None
        programs = self.draw(count, seed)
        half = len(programs) // 2
        examples += chain.from_iterable(map(self.list_examples, programs[:half]))
        when = infer(self.operation, examples)
        config = self.program.config
        condition = parse_condition(when, self.program.rules, config, "when")
        tested = chain.from_iterable(map(self.list_examples, programs[half:]))
        counts = Counter(
            (example.diverges, condition.fits(example.numbers, example.states))
            for example in tested
        )
        return Described(
            self.divergence,
            self.step,
            when,
            diverging=counts[True, True] + counts[True, False],
            agreeing=counts[False, True] + counts[False, False],
            missed=counts[True, False],
            included=counts[False, True],
        )

    def draw(self, count: int, seed: int) -> list[Program]:
        """Draws programs, half of them with the config of the failing program."""
        program = self.program
        declared = self.backend.contracts[program.contract][program.kind]
        fields = program.config.items()
        fixed = {name: (value,) for name, value in fields if name != "kind"}
        narrow = replace(declared, config={**declared.config, **fixed})
        duties = [duty for duty in declared.duties if self.can_apply(duty, narrow)]
        narrow = replace(narrow, duties=tuple(duties))
        halves = (self.draw_of(kind, count // 2, seed) for kind in (declared, narrow))
        return [*chain.from_iterable(zip(*halves, strict=False))]

    def can_apply(self, duty: Duty, declared: Kind) -> bool:
        """Tells whether caches of a kind can have the states that a valid duty names."""
        kind = replace(declared, duties=(duty,))
        try:
            parse_duties(kind, self.program.rules, self.program.kind)
        except UsageError:
            return False
        return True

    def draw_of(self, declared: Kind, count: int, seed: int) -> list[Program]:
        from lockstep.harness.programs.generate.hypothesis import generate

        form = self.program.contract, self.program.kind, replace(declared, refuses=False)
        drawer = Drawer(*form, self.backend.dtypes, self.avoid)
        drawer.aim_at([cell for cell in drawer.cells if cell[1] == self.operation])
        drawn: list[Program] = []

        def consume(program: Program) -> None:
            self.worker.note(program)
            drawn.append(program)

        generate(count, seed, drawer.draw, consume)
        return drawn

    def list_examples(self, program: Program) -> Iterator[Example]:
        """Runs a program. Yields an example for each operation of the name, except for
        one that diverges in another way: it shows another bug."""
        if self.step < len(self.program.ops) - 1:
            yield from self.list_followed(program)
            return
        run = self.run(program)
        end = run.result.divergence
        for number, example in run.seen.items():
            diverges = self.is_shown(run, number)
            if diverges or end is None or number < end.step:
                yield example._replace(diverges=diverges)

    def list_followed(self, program: Program) -> Iterator[Example]:
        """Yields an example for some operations of the name, each followed by the later
        operations of the failing program.

        An operation that diverges in another way counts as one that agrees, because a
        ledger entry must not describe it. Diverging operations are left out of the
        program, because the cache may be wrong after them.
        """
        previous: list[Op] = []
        tried = 0
        for op in program.ops:
            if op["op"] == self.operation:
                ops = [*previous, op, *follow(self.program, self.step, op)]
                run = self.run(replace(program, ops=ops))
                if len(previous) not in run.seen:  # it is illegal without the others
                    continue
                diverges = self.is_shown(run, len(ops) - 1)
                yield run.seen[len(previous)]._replace(diverges=diverges)
                tried += 1
                if diverges:
                    continue
                if tried == MOST_TRIED or run.result.divergence is not None:
                    return
            previous.append(op)

    def is_shown(self, run: Watched, number: int) -> bool:
        """Returns whether a run shows the divergence in step `number`."""
        end = run.result.divergence
        return end is not None and (
            end.step == number and end.get_signature(run.program) == self.signature
        )

    def run(self, program: Program) -> Watched:
        """Runs a program, and updates the write-ahead record."""
        self.worker.note(program)
        watch = self.every, None, self.worker.record.step, self.avoid
        run = Watched(program, self.backend, *watch, operation=self.operation)
        run.run()
        self.worker.record.end()
        return run
