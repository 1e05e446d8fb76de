"""What a relation is, and what becomes of one that does not hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import say_error
from lockstep.harness.execution.compare import Difference, find_difference
from lockstep.harness.execution.metamorphic.answers import map_answer, restrict
from lockstep.harness.execution.metamorphic.derived import Claim, Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.walk import trace

MOST_TOLD = 8
"""Operations of a derived program that a message names."""


class Relation(ABC):
    """One way to derive programs from a program and what was answered to it.

    It may look at the program and the answers, never at the reference. A choice is one
    way to derive: which step is left out, say, or (which update, where it is cut).
    """

    name: ClassVar[str]

    def is_about(self, kind: str) -> bool:
        """Whether programs of this kind often have choices. Of other kinds some may,
        too."""
        return True

    @abstractmethod
    def list_choices(self, history: History) -> Sequence[Any]:
        """The ways to derive a program from this one; none if it has nothing to say. The
        choices of a program are, in the same order, among those of a longer one."""

    @abstractmethod
    def derive(self, history: History, choice: Any) -> Derived | None:
        """None if nothing follows."""


def find_broken_claim(
    relation: Relation, program: Program, derived: Derived
) -> Divergence | None:
    """The first claim that the reference does not keep, as a divergence of the program:
    what it answers is held against what it answers to the derived program."""
    try:
        answers = trace(derived.program)
    except UsageError:
        return None  # too much to be looked at
    except Exception as error:
        first = derived.claims[0]
        message = f"the reference raised {say_error(error)}; {say_derived(derived)}"
        operation = program.ops[first.step]["op"]
        return Divergence(relation.name, first.step, operation, message)
    tags = derived.get_tags(answers)
    for claim in derived.claims:
        answer = answers[claim.other]
        if is_excused(claim, derived, answer):
            return None
        difference = compare(program, claim, tags, answer)
        if difference and claim.is_condition:
            return None
        if difference:
            op = program.ops[claim.step]
            return Divergence(
                relation.name,
                claim.step,
                op["op"],
                f"{difference.message}; {say_derived(derived, claim)}",
                answer,
                claim.answer,
                difference.tokens,
            )
    return None


def is_excused(claim: Claim, derived: Derived, answer: Answer) -> bool:
    """One of the two was refused for a reason that the other need not have."""
    errors = {claim.answer.get("error"), answer.get("error")}
    return len(errors) > 1 and not errors.isdisjoint(derived.excused)


def compare(
    program: Program, claim: Claim, tags: Mapping[int, int], answer: Answer
) -> Difference | None:
    op, rows = program.ops[claim.step], claim.rows
    operation = program.rules.operations[op["op"]]
    if "skipped" in answer:
        return Difference("result", f"what should be the same is {answer['skipped']}")

    def describe(row: int) -> str:
        return operation.describe_row(op, row if rows is None else rows[row])

    seen = map_answer(answer, tags)
    if seen.keys() != {"error"}:
        seen = restrict(claim.view(seen), claim.answer)
    if claim.is_promise:
        return find_difference(claim.answer, seen, describe)
    return find_difference(seen, claim.answer, describe)


def say_derived(derived: Derived, claim: Claim | None = None) -> str:
    """What was done to the program, and what came of it."""
    rules = derived.program.rules
    lines = [rules.operations[op["op"]].describe(op) for op in derived.program.ops]
    lines = lines if claim is None else lines[: claim.other + 1]
    if len(lines) > MOST_TOLD:
        lines = ["…", *lines[-MOST_TOLD:]]
    does = "that is" if claim is None or claim.is_promise else "so it is"
    return f"{does} {derived.words} ({'; '.join(lines)})"
