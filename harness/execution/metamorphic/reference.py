"""Defines the backend `reference`, which is compared with itself.

No other cache runs: the reference's answers to a program are compared with its answers to
derived programs.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, cast

from lockstep.harness.backends.backend import REFERENCE_NAME, Backend, Kind
from lockstep.harness.backends.interface import Arrays
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.batched.lists import LISTS, SPECIAL
from lockstep.harness.contracts.operation import Answer, Config, get_first_allowed
from lockstep.harness.contracts.paged.model import KINDS
from lockstep.harness.core.errors import UsageError, format_error
from lockstep.harness.execution.compare import (
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
from lockstep.harness.execution.comparisons import CONTENTS
from lockstep.harness.execution.executor import Coverage, Result
from lockstep.harness.execution.metamorphic import paged, prefix, rows, unified
from lockstep.harness.execution.metamorphic.relations import (
    DETOUR,
    GENERIC,
    MASK,
    Claim,
    Derived,
    Relation,
    Shadow,
    Step,
    make_history,
)
from lockstep.harness.programs.program import Divergence, Program, trace, walk

# --- the claims of a derived program ----------------------------------------------------


MOST_TOLD = 8
"""The maximum number of operations of a derived program in a message."""


def find_broken_claim(
    relation: Relation, program: Program, derived: Derived
) -> Divergence | None:
    """Finds the first claim that the reference does not fulfil; describes it as a
    divergence of the program."""
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
    op = program.ops[claim.step]
    describe = partial(program.rules.operations[op["op"]].describe_row, op)
    if "skipped" in answer:
        return Difference("result", f"the same operation is skipped: {answer['skipped']}")
    seen = select(answer, claim.answer, tags)
    if claim.is_promise:
        return find_difference(claim.answer, seen, describe)
    return find_difference(seen, claim.answer, describe)


def select(answer: Answer, wanted: Answer, tags: Mapping[int, int]) -> Answer:
    """Returns the error and the fields of an answer that `wanted` also has. Tags of a
    derived program become tags of the first program.

    A token may have different tags in the two programs. Example: if an update with 4
    tokens is removed, the tags 4 and 5 of the next tokens become 0 and 1.
    """
    fields = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    selected: Answer = {}
    for name in (name for name in (*fields, "error") if name in answer):
        value = selected[name] = answer[name]
        if name == PARTS:
            pairs = zip(value, wanted[name], strict=False)
            selected[name] = [select(*pair, tags) for pair in pairs]
        elif name in (ROWS, STATES):
            selected[name] = [map_tags(row, tags) for row in value]
        elif name in (TAGS, STORED, SLOTS, STATE) and isinstance(value, list):
            selected[name] = map_tags(value, tags)
    return selected


def map_tags(row: Sequence[Any], tags: Mapping[int, int]) -> list[Any]:
    """Replaces the tags in a list of tags or of (position, tag) pairs."""
    return [
        (token[0], tags.get(token[1], DETOUR))
        if isinstance(token, tuple)
        else tags.get(token, DETOUR)
        for token in row
    ]


def format_derived(derived: Derived, claim: Claim | None = None) -> str:
    """Describes a derived program by its last operations up to a claim."""
    rules = derived.program.rules
    lines = [rules.operations[op["op"]].describe(op) for op in derived.program.ops]
    lines = lines if claim is None else lines[: claim.derived + 1]
    if len(lines) > MOST_TOLD:
        lines = ["…", *lines[-MOST_TOLD:]]
    relates = "in" if claim is None or claim.is_promise else "as in"
    return f"{relates} {derived.description} ({'; '.join(lines)})"


def trace_first(program: Program) -> list[Answer]:
    """Runs a program on the reference; if several answers are allowed, takes the
    first."""
    return list(map(get_first_allowed, trace(program)))


# --- all relations on one program -------------------------------------------------------


SHADOWS: Mapping[str, type[Shadow]] = {
    **rows.SHADOWS,
    **unified.SHADOWS,
    **prefix.SHADOWS,
    **paged.SHADOWS,
}
"""Kind → the shadow state of its family."""

LONG = 600
"""In programs with more tokens, one derived program for each relation is tried: an answer
shows up to LONG tokens in each of LONG rows."""

TRIES = 8
"""The maximum number of choices per relation that are tried to derive a program."""


def list_relations(kind: str) -> Sequence[Relation]:
    """Lists the relations of a kind: none for engines, whose requests share nothing."""
    return [*GENERIC, *SHADOWS[kind].special] if kind in SHADOWS else []


def derive(
    program: Program,
    answers: Sequence[Answer],
    relations: Sequence[Relation],
    every: bool = False,
) -> Iterator[tuple[Relation, Derived]]:
    """Derives one program for each relation that applies, or all programs.

    The derived programs depend only on the arguments.

    Args:
        program: a complete program.
        answers: the answers of the reference, one for each operation.
        relations: the relations to apply, in this order.
        every: whether to derive all programs instead of one for each relation.
    """
    history = make_history(program, answers, SHADOWS[program.kind])
    random = Random(program.digest())
    choices: dict[Relation, list[tuple[Step, Any]]] = {x: [] for x in relations}
    for step, state in history.walk():
        for relation in relations:
            choices[relation] += [(step, way) for way in relation.list_ways(state, step)]
    for relation, pairs in choices.items():
        tried = pairs if every else random.sample(pairs, min(TRIES, len(pairs)))
        derived_programs = (
            relation.derive(history, history.get_state(step), step, way)
            for step, way in tried
        )
        for derived in islice(filter(None, derived_programs), None if every else 1):
            yield relation, derived


def derive_one(program: Program, number: int) -> Program | None:
    """Derives one program that differs from the first program; tries the relations from
    index `number` on."""
    relations = [x for x in list_relations(program.kind) if x is not MASK]
    if not relations:
        return None
    first = number % len(relations)
    turned = (*relations[first:], *relations[:first])
    derived_programs = derive(program, trace_first(program), turned)
    return next((derived.program for _, derived in derived_programs), None)


def find_contradiction(
    program: Program,
    every: bool = True,
    applied: Counter[str] | None = None,
    wanted: str | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Divergence | None:
    """Finds a contradiction between the reference's answers to a program and to derived
    programs.

    Args:
        program: a complete program.
        every: whether to try all derived programs instead of one for each relation; see
            also `LONG`.
        applied: relation → number of uses; the counter is updated.
        wanted: the required signature; contradictions with other signatures are skipped.
        on_step: a function that is called before each derived program, so that a long
            search does not look like a hang.

    Raises:
        UsageError: the program is too large to be checked.
    """
    answers = trace_first(program)
    relations = [
        relation
        for relation in list_relations(program.kind)
        if wanted is None or wanted.endswith(f"-{relation.name}")
    ]
    operations = program.rules.operations
    every &= sum(operations[op["op"]].count_tags(op) for op in program.ops) <= LONG
    derived_programs = derive(program, answers, relations, every)
    for number, (relation, derived) in enumerate(derived_programs):
        if on_step:
            on_step(number % len(program.ops))
        if applied is not None:
            applied[relation.name] += 1
        divergence = find_broken_claim(relation, program, derived)
        if divergence and wanted in (None, divergence.get_signature(program)):
            return divergence
    return None


# --- the backend ------------------------------------------------------------------------


SHARE = 4
"""The reference runs one program in SHARE, because it also runs about six derived
programs for each program. Other backends run all programs."""

PAGED = {
    "flight": (0, 1, 2),
    "overlap": (False, True),
    "lags": (False, True),
    "lookahead": (0, 2, 1, 3),
    "remote": (False, True),
}
CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": {"chunk": (None, None, 2, 3)},
    "rotating": {"keep": (0, 0, 1, 2)},
    # With a lookahead, what a cache can trim depends on tokens that it no longer has.
    "pooled": {"lookahead": (0,)},
    "batch-kv": {"chunk": (None, None, 2, 3)},
    "batch-rotating": {"keep": (0, 0, 1, 2)},
    "batch-list": {"caches": (*LISTS, SPECIAL)},
    "trie": {"interval": (None, None, 1, 2, 3)},
    **dict.fromkeys(KINDS, PAGED),
}
"""The values of config fields that are drawn only if a backend declares the fields."""


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
        every: whether to try all derived programs instead of one for each relation.
        coverage: the counter of cells to update.
        on_step: a function that is called with the number of each step before it runs.
        wanted: the required signature; contradictions with other signatures are skipped.
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
            result.comparisons.operations[operation] += 1
    except Exception as error:
        message = f"raised {format_error(error)}"
        result.divergence = Divergence("error", number, operation, message)
        return result
    applied = Counter[str]()
    try:
        result.divergence = find_contradiction(program, every, applied, wanted, on_step)
    except UsageError as error:
        return Result(skipped=result.steps, why_skipped=str(error))
    result.comparisons.compared[CONTENTS] = applied.total()
    return result


def open_nothing(config: Config) -> Any:
    raise NotImplementedError("the reference is not a cache; `execute` runs its programs")


LEFT_OUT = {"statistics", "overrun"}
"""The operations that no relation supports: a derived program may have other requests."""

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
        if rules.has_arrays
    },
    arrays=cast(Arrays, None),
    open=open_nothing,
    versions={"python": platform.python_version()},
    notes="compared with itself",
    execute=execute,
    share=SHARE,
)


def get_reference() -> Backend:
    return REFERENCE
