"""Checks the claims of a derived program."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.harness.contracts.operation import Answer
from lockstep.harness.core.errors import UsageError, say_error
from lockstep.harness.execution.compare import Difference, find_difference
from lockstep.harness.execution.metamorphic.answers import map_answer, restrict
from lockstep.harness.execution.metamorphic.derived import Claim, Derived, Relation
from lockstep.harness.programs.program import Divergence, Program, trace

MOST_TOLD = 8
"""Operations of a derived program that a message names."""


def find_broken_claim(
    relation: Relation, program: Program, derived: Derived
) -> Divergence | None:
    """The first claim that the reference breaks, as a divergence of the program."""
    try:
        answers = trace(derived.program)
    except UsageError:
        return None  # too large to be checked
    except Exception as error:
        first = derived.claims[0]
        message = f"the reference raised {say_error(error)}, {say_derived(derived)}"
        operation = program.ops[first.step]["op"]
        return Divergence(relation.name, first.step, operation, message)
    for claim in derived.claims:
        answer = answers[claim.other]
        difference = compare(program, claim, derived.tags, answer)
        if difference and claim.is_condition:
            return None
        if difference:
            return Divergence(
                relation.name,
                claim.step,
                program.ops[claim.step]["op"],
                f"{difference.message}, {say_derived(derived, claim)}",
                answer,
                claim.answer,
                difference.tokens,
            )
    return None


def compare(
    program: Program, claim: Claim, tags: Mapping[int, int], answer: Answer
) -> Difference | None:
    op, rows = program.ops[claim.step], claim.rows
    operation = program.rules.operations[op["op"]]
    if "skipped" in answer:
        return Difference("result", f"the same operation is skipped: {answer['skipped']}")

    def describe(row: int) -> str:
        return operation.describe_row(op, row if rows is None else rows[row])

    seen = map_answer(answer, tags)
    if seen.keys() != {"error"}:
        seen = restrict(claim.view(seen), claim.answer)
    if claim.is_promise:
        return find_difference(claim.answer, seen, describe)
    return find_difference(seen, claim.answer, describe)


def say_derived(derived: Derived, claim: Claim | None = None) -> str:
    """The derived program in words, with its last operations up to a claim."""
    rules = derived.program.rules
    lines = [rules.operations[op["op"]].describe(op) for op in derived.program.ops]
    lines = lines if claim is None else lines[: claim.other + 1]
    if len(lines) > MOST_TOLD:
        lines = ["…", *lines[-MOST_TOLD:]]
    relates = "in" if claim is None or claim.is_promise else "as in"
    return f"{relates} {derived.words} ({'; '.join(lines)})"
