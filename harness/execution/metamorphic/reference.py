"""The reference as a backend like any other: compared with itself.

No other cache runs. Its answers to a program are compared with its answers to derived
programs.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, cast

from lockstep.harness.backends.backend import REFERENCE_NAME, Backend, Kind
from lockstep.harness.backends.interface import Arrays
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.batched.parts import LISTS, SPECIAL
from lockstep.harness.contracts.operation import Answer, Config, get_first_allowed
from lockstep.harness.core.errors import UsageError, format_error
from lockstep.harness.execution.compare import (
    COLUMNS,
    PARTS,
    ROWS,
    SLOTS,
    STATE,
    STATES,
    STORED,
    TAGS,
    Difference,
    find_difference,
)
from lockstep.harness.execution.executor import Coverage, Result
from lockstep.harness.execution.metamorphic import (
    batched,
    layer,
    paged,
    prefix,
    unified,
)
from lockstep.harness.execution.metamorphic.relations import (
    DETOUR,
    GENERIC,
    Claim,
    Derived,
    Family,
    Relation,
    make_history,
)
from lockstep.harness.programs.program import Divergence, Program, trace, walk

# --- the claims of a derived program ----------------------------------------------------


MOST_TOLD = 8
"""Number of operations of a derived program that a message names."""


def find_broken_claim(
    relation: Relation, program: Program, derived: Derived
) -> Divergence | None:
    """Finds the first claim that the reference breaks, as a divergence of the program."""
    try:
        answers = trace_first(derived.program)
    except UsageError:
        return None  # too large to be checked
    except Exception as error:
        first = derived.claims[0]
        message = f"the reference raised {format_error(error)}, {format_derived(derived)}"
        operation = program.ops[first.step]["op"]
        return Divergence(relation.name, first.step, operation, message)
    for claim in derived.claims:
        answer = answers[claim.derived]
        difference = compare(program, claim, derived.tags, answer)
        if difference and claim.is_condition:
            return None
        if difference:
            return Divergence(
                relation.name,
                claim.step,
                program.ops[claim.step]["op"],
                f"{difference.message}, {format_derived(derived, claim)}",
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
    """Replaces the tags in an answer.

    The same token may have different tags in two programs: if an update with 4 tokens is
    left out, tags 4 and 5 become 0 and 1. So the tags of the derived program are replaced
    by those of the first one before two answers are compared.
    """
    mapped: Answer = {}
    for name, value in answer.items():
        if name == PARTS:
            mapped[name] = [map_answer(member, tags) for member in value]
        elif name in (ROWS, STATES):
            mapped[name] = [map_tags(row, tags) for row in value]
        elif name in (TAGS, STORED, SLOTS, STATE) and isinstance(value, list):
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
    """Selects the fields of an answer that `wanted` has, tokens first, and any error."""
    fields = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    restricted = {name: answer[name] for name in fields if name in answer}
    if "error" in answer:
        restricted["error"] = answer["error"]
    if PARTS in restricted and PARTS in wanted:
        pairs = zip(answer[PARTS], wanted[PARTS], strict=False)
        restricted[PARTS] = [
            restrict(member, wanted_part) for member, wanted_part in pairs
        ]
    return restricted


def format_derived(derived: Derived, claim: Claim | None = None) -> str:
    """Formats a derived program in words, with its last operations up to a claim."""
    rules = derived.program.rules
    lines = [rules.operations[op["op"]].describe(op) for op in derived.program.ops]
    lines = lines if claim is None else lines[: claim.derived + 1]
    if len(lines) > MOST_TOLD:
        lines = ["…", *lines[-MOST_TOLD:]]
    relates = "in" if claim is None or claim.is_promise else "as in"
    return f"{relates} {derived.description} ({'; '.join(lines)})"


def trace_first(program: Program) -> list[Answer]:
    """Traces a program; where the reference leaves a choice, takes the first answer."""
    return list(map(get_first_allowed, trace(program)))


# --- all relations on one program -------------------------------------------------------


FAMILIES: Mapping[str, Family] = {
    **layer.FAMILIES,
    **batched.FAMILIES,
    **unified.FAMILIES,
    **prefix.FAMILIES,
    **prefix.SLOTS,
    **paged.FAMILIES,
}
"""Kind → its family."""

TRIES = 8
"""Choices that are tried for each relation until one yields a derived program."""


def list_relations(kind: str) -> Sequence[Relation]:
    return [*GENERIC, *FAMILIES[kind].special]


def derive(
    program: Program,
    answers: Sequence[Answer],
    relations: Sequence[Relation],
    every: bool = False,
) -> Iterator[tuple[Relation, Derived]]:
    """Derives one program for each relation that applies, or every one.

    The same program always gives the same ones.

    Args:
        program: a complete program.
        answers: of the reference, one for each operation.
        relations: to apply, in this order.
        every: derive all programs, not one for each relation.
    """
    history = make_history(program, answers, FAMILIES[program.kind].shadow)
    random = Random(program.digest())
    for relation in relations:
        choices = relation.list_choices(history)
        if not every:
            choices = random.sample(choices, min(TRIES, len(choices)))
        derived_programs = (relation.derive(history, choice) for choice in choices)
        for derived in islice(filter(None, derived_programs), None if every else 1):
            yield relation, derived


def derive_one(program: Program, number: int) -> Program | None:
    """Derives one program, with the relations in turn by `number`."""
    relations = list_relations(program.kind)
    first = number % len(relations)
    turned = (*relations[first:], *relations[:first])
    derived_programs = derive(program, trace_first(program), turned)
    return next((derived.program for _, derived in derived_programs), None)


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
        answers = trace_first(program)
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


# --- the backend ------------------------------------------------------------------------


SHARE = 4
"""The reference gets every 8th of the programs that a backend runs: with each it runs
half a dozen others."""

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": {"chunk": (None, None, 2, 3)},
    "rotating": {"keep": (0, 0, 1, 2)},
    "batch-kv": {"chunk": (None, None, 2, 3)},
    "batch-rotating": {"keep": (0, 0, 1, 2)},
    "batch-list": {"caches": (*LISTS, SPECIAL)},
    "trie": {"interval": (None, None, 1, 2, 3)},
}
"""Fields that are drawn only if a backend names them."""


def execute(
    program: Program,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
    wanted: str | None = None,
) -> Result:
    """Runs a program on the reference, and compares its answers with derived programs.

    Args:
        program: a complete program.
        every: try all derived programs, not one for each relation.
        coverage: is counted up.
        on_step: is called with the number of each step before it runs.
        wanted: the signature that a contradiction must have; others are passed over.
    """
    result = Result()
    number, operation = 0, "open"
    try:
        for step in walk(program, rows=False):
            number, operation = step.number, step.op["op"]
            if on_step:
                on_step(number)
            if step.skipped is not None:
                result.skip(step.skipped)
                continue
            if coverage is not None:
                for state in program.rules.get_states(step.op, step.model):
                    coverage[state, operation] += 1
            step.run_reference()
            result.steps += 1
    except Exception as error:
        message = f"raised {format_error(error)}"
        result.divergence = Divergence("error", number, operation, message)
        return result
    result.divergence = find_contradiction(program, every, wanted=wanted)
    return result


def open_nothing(config: Config) -> Any:
    raise NotImplementedError("the reference is not run beside itself")


LEFT_OUT = {"statistics", "overrun"}
"""No relation knows them: a derived program may have other requests."""

REFERENCE = Backend(
    name=REFERENCE_NAME,
    device="none",
    contracts={
        name: {
            kind: Kind(
                frozenset(rules.list_operations(kind)) - LEFT_OUT, CONFIG.get(kind, {})
            )
            for kind in rules.kinds
        }
        for name, rules in CONTRACTS.items()
    },
    arrays=cast(Arrays, None),
    open=open_nothing,
    versions={"python": platform.python_version()},
    notes="held against itself",
    execute=execute,
    share=SHARE,
)


def get_reference() -> Backend:
    return REFERENCE
