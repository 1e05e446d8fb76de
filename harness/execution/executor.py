"""The executor: one program, the reference and a backend, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.base import Answer, Broken, Cell, Op
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import make_plain, say_error, say_missing, say_raised
from lockstep.harness.execution.compare import Difference, find_difference
from lockstep.harness.programs.program import Program

Coverage = Counter[Cell]
"""How often each cell was reached."""

MAX_ANSWERED = 1 << 22
"""In a trace. A chunk of 512 tokens behind 4,096 comes to half of it."""

LAYOUT = ("columns", "seen")
"""What an answer says of the order in which tokens came back: not compared."""

ERRORS = frozenset({"malformed", "crash", "hang", "missing"})
"""What differs if the backend is not wrong about a cache, but no longer answers."""


@dataclass(frozen=True)
class Divergence:
    """The first step at which a backend and the reference part.

    what: contents, mask, offset, size, result, error, attention, alias, malformed, crash,
    hang or missing (a part of the backend that nobody has written yet). message: how, in
    a sentence. tokens: the tags that the sentence is about.
    """

    what: str
    step: int
    operation: str
    message: str
    expected: Answer | None = None
    got: Answer | None = None
    tokens: tuple[int, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.what in ERRORS

    def get_signature(self, program: Program) -> str:
        """Two divergences with one signature are taken for one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Divergence:
        return cls(**{**document, "tokens": tuple(document["tokens"])})


@dataclass
class Result:
    """What came of one run.

    why_skipped: the reason of the first operation that was skipped. margin: the largest
    error that a tolerance allowed, as a share of that tolerance.
    """

    steps: int = 0
    skipped: int = 0
    why_skipped: str | None = None
    margin: float = 0.0
    divergence: Divergence | None = None


class Run:
    """One program on the reference and on a backend.

    every: make the costly checks at each step, not at some.
    coverage: is counted up. on_step: is called with each step before it runs.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        every: bool = False,
        coverage: Coverage | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self.program, self.backend, self.every = program, backend, every
        self.rules = program.rules
        self.coverage, self.on_step = coverage, on_step
        self.model = self.rules.open_model(program.config)
        self.subject: Any = None
        self.found: list[Cell] = []
        self.result = Result()

    def run(self) -> Result:
        """Until the end, or the first divergence."""
        step, operation = 0, "open"
        try:
            with self.backend.scope():
                self.subject = self.open_subject()
                for step, op in enumerate(self.program.ops):
                    operation = op["op"]
                    if self.on_step:
                        self.on_step(step)
                    if self.is_skipped(op):
                        continue
                    expected, observed, difference = self.take_step(op)
                    if difference is not None:
                        self.diverge(difference, step, operation, expected, observed)
                        return self.result
                self.subject.finish()
                self.result.margin = self.subject.margin
        except Broken as broken:
            blamed = broken.operation or operation
            self.diverge(Difference(broken.what, str(broken)), step, blamed)
        except NotImplementedError as error:
            self.diverge(Difference("missing", say_missing(error)), step, operation)
        except Exception as error:
            # Only the backend's own code can raise anything else here, and the reference
            # does not raise where an operation is legal.
            self.diverge(Difference("error", say_raised(error)), step, operation)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            message = f"would have ended the process: raised {say_error(error)}"
            self.diverge(Difference("crash", message), step, operation)
        finally:
            if self.coverage is not None:
                self.coverage.update(self.found)
        return self.result

    def open_subject(self) -> Any:
        return self.rules.open_subject(
            self.backend, self.program.config, self.program.ops, self.every
        )

    def is_skipped(self, op: Op) -> bool:
        operation = self.rules.operations[op["op"]]
        why = operation.illegal(op, self.model)
        if why is None:
            return False
        self.result.why_skipped = self.result.why_skipped or why
        self.result.skipped += 1
        self.model.tag += operation.tokens(op)
        return True

    def take_step(self, op: Op) -> tuple[Answer, Answer, Difference | None]:
        """One operation on both sides."""
        operation, model, subject = (
            self.rules.operations[op["op"]],
            self.model,
            self.subject,
        )
        if self.coverage is not None:
            name = operation.name
            self.found += [(state, name) for state in self.rules.get_states(op, model)]
        subject.settle(op)
        expected = self.expect(op)
        observed = self.observe(op)
        difference = find_difference(
            expected, observed, lambda row: operation.describe_row(op, row)
        )
        if difference is None:
            operation.verify(op, subject, model)
        self.result.steps += 1
        model.tag += operation.tokens(op)
        return expected, observed, difference

    def expect(self, op: Op) -> Answer:
        return self.rules.operations[op["op"]].expect(op, self.model)

    def observe(self, op: Op) -> Answer:
        return self.rules.operations[op["op"]].observe(op, self.subject, self.model)

    def diverge(
        self,
        difference: Difference,
        step: int,
        operation: str,
        expected: Answer | None = None,
        got: Answer | None = None,
    ) -> None:
        self.result.divergence = Divergence(
            difference.what,
            step,
            operation,
            difference.message,
            expected,
            make_plain(leave_out_columns(got)),
            difference.tokens,
        )


def leave_out_columns(answer: Any) -> Any:
    """An answer without what only the comparison and pictures need."""
    if isinstance(answer, list):
        return [leave_out_columns(part) for part in answer]
    if not isinstance(answer, Mapping):
        return answer
    kept = {name: value for name, value in answer.items() if name not in LAYOUT}
    return {
        name: leave_out_columns(value) if name in ("caches", "layers") else value
        for name, value in kept.items()
    }


def run(
    program: Program,
    backend: Backend,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Result:
    """Runs `program` until its end or its first divergence; see `Run`."""
    return Run(program, backend, every, coverage, on_step).run()


def trace(program: Program) -> list[Answer]:
    """What the reference expects of each operation; skipped ones say why.

    Raises UsageError if that comes to more than MAX_ANSWERED numbers.
    """
    rules = program.rules
    model = rules.open_model(program.config)
    answers: list[Answer] = []
    numbers = 0
    for op in program.ops:
        operation = rules.operations[op["op"]]
        why = operation.illegal(op, model)
        answers.append({"skipped": why} if why else operation.expect(op, model))
        model.tag += operation.tokens(op)
        numbers += count_numbers(answers[-1])
        if numbers > MAX_ANSWERED:
            raise UsageError(
                f"what the reference expects comes to more than {MAX_ANSWERED:,} numbers;"
                " trace a shorter program"
            )
    return answers


def breaks_usage(program: Program) -> bool:
    """Whether some operation of a program breaks a rule of usage."""
    model = program.rules.open_model(program.config, rows=False)
    for op in program.ops:
        operation = program.rules.operations[op["op"]]
        is_legal = operation.illegal(op, model) is None
        if is_legal and operation.expect(op, model).get("error") == "usage":
            return True
        model.tag += operation.tokens(op)
    return False


def count_numbers(value: Any) -> int:
    """The numbers in an answer, however deep."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        nested = value and isinstance(value[0], list)
        return sum(map(count_numbers, value)) if nested else len(value)
    return 1
