"""The relations of each contract, and the first that a program contradicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import say_error
from lockstep.harness.execution.metamorphic import layer, prefix, unified
from lockstep.harness.execution.metamorphic.derived import Derived
from lockstep.harness.execution.metamorphic.history import make_history
from lockstep.harness.execution.metamorphic.relation import Relation, find_broken_claim
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.walk import trace

RELATIONS: Mapping[str, Sequence[Relation]] = {
    "layer": layer.RELATIONS,
    "unified": unified.RELATIONS,
    "prefix": prefix.RELATIONS,
}
"""By contract."""

TRIES = 4
"""Choices that are tried for each relation until one leads to something."""

Applied = Counter[str]
"""Relation → how often it had something to say."""


def derive_some(
    program: Program, answers: Sequence[Answer], relations: Sequence[Relation]
) -> Iterator[tuple[Relation, Derived]]:
    """One derived program for each relation that applies, the same ones each time."""
    history = make_history(program, answers)
    random = Random(program.digest())
    for relation in relations:
        choices = relation.list_choices(history)
        for choice in random.sample(choices, min(TRIES, len(choices))):
            derived = relation.derive(history, choice)
            if derived:
                yield relation, derived
                break


def derive_one(program: Program, number: int) -> Program | None:
    """One derived program, by the relations in turn."""
    relations = RELATIONS[program.contract]
    first = number % len(relations)
    turned = (*relations[first:], *relations[:first])
    some = derive_some(program, trace(program), turned)
    return next((derived.program for _, derived in some), None)


def derive_all(
    program: Program, answers: Sequence[Answer], relations: Sequence[Relation]
) -> Iterator[tuple[Relation, Derived]]:
    """All that the relations can derive."""
    history = make_history(program, answers)
    for relation in relations:
        for choice in relation.list_choices(history):
            derived = relation.derive(history, choice)
            if derived:
                yield relation, derived


def find_contradiction(
    program: Program,
    every: bool = True,
    applied: Applied | None = None,
    wanted: str | None = None,
) -> Divergence | None:
    """Where the reference contradicts itself: the first answer to `program` that is not
    what follows from what it answers to another one.

    every: try all that can be derived, not one program for each relation. applied: is
    counted up. wanted: the signature that the contradiction must have; others are passed
    over.
    """
    try:
        answers = trace(program)
    except UsageError:
        return None  # too much to be looked at
    except Exception as error:
        last = len(program.ops) - 1
        message = f"the reference raised {say_error(error)}"
        return Divergence("error", last, program.ops[last]["op"], message)
    derive = derive_all if every else derive_some
    relations = [
        relation
        for relation in RELATIONS[program.contract]
        if wanted is None or wanted.endswith(f"-{relation.name}")
    ]
    for relation, derived in derive(program, answers, relations):
        if applied is not None:
            applied[relation.name] += 1
        divergence = find_broken_claim(relation, program, derived)
        if divergence and wanted in (None, divergence.get_signature(program)):
            return divergence
    return None
