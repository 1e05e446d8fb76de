"""The executor: one program, the reference and a backend, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from harness.backend import Backend
from harness.compare import find_difference
from harness.contracts.base import Answer, Broken, Contract, Op
from harness.program import Program

Coverage = Counter[tuple[str, str]]
"""(abstract state, operation) → how often."""

ERRORS = frozenset({"malformed", "crash", "hang"})
"""What differs if the backend is not wrong about a cache, but no longer answers."""


@dataclass(frozen=True)
class Divergence:
    """The first step at which a backend and the reference part.

    what: contents, mask, offset, size, result, error, attention, alias, malformed, crash
    or hang. message: how, in a sentence.
    """

    what: str
    step: int
    operation: str
    message: str
    expected: Answer | None = None
    got: Answer | None = None

    @property
    def is_error(self) -> bool:
        return self.what in ERRORS

    def get_signature(self, program: Program) -> str:
        """Two divergences with one signature are taken for one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Result:
    """What came of one run."""

    steps: int = 0
    skipped: int = 0
    margin: float = 0.0
    divergence: Divergence | None = None


def run(
    program: Program,
    backend: Backend,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Result:
    """Runs `program` until its end or its first divergence.

    every: make the costly checks at each step, not at some.
    coverage: is counted up. on_step: is called with each step before it runs.
    """
    result, rules = Result(), program.rules
    model = rules.open_model(program.config)
    step, operation = 0, "open"
    try:
        subject = rules.open_subject(
            backend, program.config, program.count_tokens(), every
        )
        for step, op in enumerate(program.ops):
            operation = op["op"]
            if on_step:
                on_step(step)
            if run_step(op, rules, model, subject, result, coverage):
                break
            result.margin = subject.margin
        else:
            subject.finish()
    except Broken as broken:
        result.divergence = Divergence(broken.what, step, operation, str(broken))
    except StepFailed as failed:
        result.divergence = Divergence("error", step, operation, str(failed))
    return result


class StepFailed(Exception):
    """The backend raised where the reference does not."""


def run_step(
    op: Op,
    rules: Contract,
    model: Any,
    subject: Any,
    result: Result,
    coverage: Coverage | None,
) -> bool:
    """One operation on both sides; whether they parted."""
    name = op["op"]
    operation = rules.operations[name]
    if operation.illegal(op, model) is not None:
        result.skipped += 1
        model.tag += operation.tokens(op)
        return False
    if coverage is not None:
        for state in rules.get_states(op, model):
            coverage[state, name] += 1
    expected = operation.expect(op, model)
    try:
        subject.settle(op)
        observed = operation.observe(op, subject, model)
        difference = find_difference(expected, observed)
        if difference is None:
            operation.verify(op, subject, model)
    except Broken:
        raise
    except Exception as error:
        raise StepFailed(f"raised {type(error).__name__}: {error}") from error
    result.steps += 1
    model.tag += operation.tokens(op)
    if difference is None:
        return False
    observed.pop("columns", None)
    step = result.steps + result.skipped - 1
    result.divergence = Divergence(*order(difference, step, name), expected, observed)
    return True


def order(difference: tuple[str, str], step: int, name: str) -> tuple[str, int, str, str]:
    what, message = difference
    return what, step, name, message


def trace(program: Program) -> list[Answer]:
    """What the reference expects of each operation; skipped ones say why."""
    rules = program.rules
    model = rules.open_model(program.config)
    answers: list[Answer] = []
    for op in program.ops:
        operation = rules.operations[op["op"]]
        why = operation.illegal(op, model)
        answers.append({"skipped": why} if why else operation.expect(op, model))
        model.tag += operation.tokens(op)
    return answers
