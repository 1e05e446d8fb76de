"""All relations on one program, and the first that the program contradicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random

from lockstep.harness.contracts.operation import Answer
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.metamorphic import (
    layer,
    prefix,
    slots,
    unified_cases,
)
from lockstep.harness.execution.metamorphic.claims import find_broken_claim
from lockstep.harness.execution.metamorphic.relations import (
    GENERIC,
    Derived,
    Family,
    Relation,
    make_history,
)
from lockstep.harness.programs.program import Divergence, Program, trace

FAMILIES: Mapping[str, Family] = {
    **layer.FAMILIES,
    **unified_cases.FAMILIES,
    **prefix.FAMILIES,
    **slots.FAMILIES,
}
"""By kind."""

TRIES = 8
"""Choices that are tried for each relation until one leads to something."""


def list_relations(kind: str) -> Sequence[Relation]:
    return [*GENERIC, *FAMILIES[kind].special]


def derive(
    program: Program,
    answers: Sequence[Answer],
    relations: Sequence[Relation],
    every: bool = False,
) -> Iterator[tuple[Relation, Derived]]:
    """One derived program for each relation that applies, the same ones each time; or
    every one."""
    history = make_history(program, answers, FAMILIES[program.kind].shadow)
    random = Random(program.digest())
    for relation in relations:
        choices = relation.list_choices(history)
        if not every:
            choices = random.sample(choices, min(TRIES, len(choices)))
        some = (relation.derive(history, choice) for choice in choices)
        for derived in islice(filter(None, some), None if every else 1):
            yield relation, derived


def derive_one(program: Program, number: int) -> Program | None:
    """One derived program, by the relations in turn."""
    relations = list_relations(program.kind)
    first = number % len(relations)
    turned = (*relations[first:], *relations[:first])
    some = derive(program, trace(program), turned)
    return next((derived.program for _, derived in some), None)


def find_contradiction(
    program: Program,
    every: bool = True,
    applied: Counter[str] | None = None,
    wanted: str | None = None,
) -> Divergence | None:
    """Finds where the reference contradicts itself.

    That is the first answer to `program` that does not follow from the answers to
    another one.

    Args:
        program: a complete program.
        every: try all that can be derived, not one program for each relation.
        applied: relation → how often it applied; is counted up.
        wanted: the signature that the contradiction must have; others are passed over.
    """
    try:
        answers = trace(program)
    except UsageError:
        return None  # too large to be checked
    relations = [
        relation
        for relation in list_relations(program.kind)
        if wanted is None or wanted.endswith(f"-{relation.name}")
    ]
    for relation, derived in derive(program, answers, relations, every):
        if applied is not None:
            applied[relation.name] += 1
        divergence = find_broken_claim(relation, program, derived)
        if divergence and wanted in (None, divergence.get_signature(program)):
            return divergence
    return None
