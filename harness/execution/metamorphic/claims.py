"""Checks the claims of a derived program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Answer
from lockstep.harness.core.errors import UsageError, say_error
from lockstep.harness.execution.compare import (
    COLUMNS,
    PARTS,
    ROWS,
    STATES,
    STORED,
    TAGS,
    Difference,
    find_difference,
)
from lockstep.harness.execution.metamorphic.relations import (
    DETOUR,
    Claim,
    Derived,
    Relation,
)
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


def map_answer(answer: Answer, tags: Mapping[int, int]) -> Answer:
    """The same answer with other tags.

    The same token may have different tags in two programs: if an update with 4 tokens is
    left out, tags 4 and 5 become 0 and 1. So the tags of the derived program are replaced
    by those of the first one before two answers are compared.
    """
    mapped: Answer = {}
    for name, value in answer.items():
        if name == PARTS:
            mapped[name] = [map_answer(part, tags) for part in value]
        elif name in (ROWS, STATES):
            mapped[name] = [map_tags(row, tags) for row in value]
        elif name in (TAGS, STORED) and isinstance(value, list):
            mapped[name] = map_tags(value, tags)
        elif name != COLUMNS:
            mapped[name] = value
    return mapped


def map_tags(row: Sequence[Any], tags: Mapping[int, int]) -> list[Any]:
    """Replaces the tags in a list of tags or of (position, tag) pairs."""
    return [
        (token[0], tags.get(token[1], DETOUR))
        if isinstance(token, tuple)
        else tags.get(token, DETOUR)
        for token in row
    ]


def restrict(answer: Answer, wanted: Answer) -> Answer:
    """The fields of an answer that another one has, tokens first, and any error."""
    told = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    kept = {name: answer[name] for name in told if name in answer}
    if "error" in answer:
        kept["error"] = answer["error"]
    if PARTS in kept and PARTS in wanted:
        pairs = zip(answer[PARTS], wanted[PARTS], strict=False)
        kept[PARTS] = [restrict(part, other) for part, other in pairs]
    return kept


def say_derived(derived: Derived, claim: Claim | None = None) -> str:
    """The derived program in words, with its last operations up to a claim."""
    rules = derived.program.rules
    lines = [rules.operations[op["op"]].describe(op) for op in derived.program.ops]
    lines = lines if claim is None else lines[: claim.other + 1]
    if len(lines) > MOST_TOLD:
        lines = ["…", *lines[-MOST_TOLD:]]
    relates = "in" if claim is None or claim.is_promise else "as in"
    return f"{relates} {derived.words} ({'; '.join(lines)})"
