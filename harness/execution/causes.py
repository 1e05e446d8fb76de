"""Finds failures that may have the same cause, with evidence.

The program of each failure is shrunk: it no longer fails if any of its operations is
removed. If an operation is special (not every backend supports it, or it sets an optional
field), it is a clue to the cause. Failures that need the same special operations may have
one cause. They probably have one cause if they also raise an exception in the same line
of the backend, or show the same wrong content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.programs.words import is_special, list_traits

# --- evidence ---------------------------------------------------------------------------

RAISED = re.compile(r"raised (\w+).*, (in [^,]+)$", re.DOTALL)
"""Matches the message about an exception: its type and location in the backend's code."""

WRONG_CONTENT = re.compile(r"\([^()]* (?:missing|too much)\)")

COMPARED = re.compile(r"is (-?[0-9]+), not (-?[0-9]+)")


@dataclass(frozen=True)
class Evidence:
    """The evidence in a failure about its cause.

    Attributes:
        family: contract and kind.
        steps: the names of the operations before the failing operation.
        essential: the traits of `steps`, or, if `steps` has none, of the failing
            operation.
        is_plain: whether `steps` has no traits.
        traits: the traits of all operations.
        seen: the failing operation.
        what: see `Divergence`.
        symptom: the difference of the results, without numbers.
        content: the wrong content, such as "(0 is missing; NaN is too much)"; empty if
            no contents differ.
        raised: the exception and its location, as text; empty without an exception.
        is_open: whether the contract leaves choices to the backend, so that many
            different steps lead to the same state.
    """

    family: tuple[str, str]
    steps: tuple[str, ...]
    essential: frozenset[str]
    is_plain: bool
    traits: frozenset[str]
    seen: str
    what: str
    symptom: str
    content: str
    raised: str
    is_open: bool


def gather_evidence(
    program: Program, step: int | None, what: str, message: str
) -> Evidence:
    """Collects the evidence from a shrunk program and the message of its divergence.

    Args:
        step: the failing step; None for the last step.
    """
    at = len(program.ops) - 1 if step is None else step
    leading, last = program.ops[: max(0, at)], program.ops[max(0, at) : at + 1]
    traits = frozenset(trait for op in leading for trait in list_traits(program, op))
    last_traits = frozenset(trait for op in last for trait in list_traits(program, op))
    raised = RAISED.match(message)
    return Evidence(
        (program.contract, program.kind),
        tuple(op["op"] for op in leading),
        traits or last_traits,
        not traits,
        traits | last_traits,
        last[0]["op"] if last else "open",
        what,
        normalize(what, message),
        "".join(WRONG_CONTENT.findall(message)),
        f"{raised[1]} {raised[2]}" if raised else "",
        program.rules.leaves_choices,
    )


ALIAS = "alias"


def get_evidence(program: Program, seen: Divergence) -> Evidence:
    return gather_evidence(program, seen.step, seen.what, seen.message)


def normalize(what: str, message: str) -> str:
    """Removes numbers and indices from the message of a difference, for comparisons."""
    if what == ALIAS:
        return ALIAS  # for every operation that returned the array
    missing, extra = " missing" in message, " too much" in message
    if missing or extra:
        marks = [mark for mark in ("NaN", "zeros", "pad ") if mark in message]
        kind = "contents" if what == "mask" else what
        return " ".join([kind, f"missing {missing}", f"extra {extra}", *marks[:1]])
    compared = COMPARED.search(message)
    signs = f" more {int(compared[1]) > int(compared[2])}" if compared else ""
    bare = re.sub(r"[0-9.]+", "#", re.sub(r"\[.*?\]", "[]", message))
    return f"{what} {bare}{signs}"


def probably_have_one_cause(first: Evidence, second: Evidence) -> bool:
    """Returns whether two failures raise in the same line of the backend, or need the
    same operations and show the same wrong content."""
    if first.raised or second.raised:
        return first.family[0] == second.family[0] and first.raised == second.raised
    is_same = bool(first.content) and first.content == second.content
    return is_same and may_have_one_cause(first, second)


def may_have_one_cause(first: Evidence, second: Evidence) -> bool:
    """Returns whether two failures probably have one cause, or need the same operations
    and have a similar symptom."""
    if first.family[0] != second.family[0]:
        return False
    if first.raised or second.raised:
        return bool(first.raised == second.raised) or have_same_essentials(first, second)
    is_same = first.symptom == second.symptom
    if first.is_plain and second.is_plain and first.steps == second.steps and is_same:
        return True
    return have_same_essentials(first, second)


def have_same_essentials(first: Evidence, second: Evidence) -> bool:
    """Returns whether both failures have the same essential traits and a similar symptom.

    If the symptoms are not equal, the failures must be of one family and, where the
    contract leaves choices to the backend, have the same `what`.
    """
    if not first.essential or not second.essential:
        return False
    if first.symptom == second.symptom == ALIAS:
        return first.essential <= second.essential or second.essential <= first.essential
    if first.essential != second.essential:
        return False
    if first.symptom == second.symptom:
        return True
    is_alike = first.what == second.what or not first.is_open
    return is_alike and first.family == second.family


def join_causes(
    evidence: Sequence[Evidence],
    joined: Iterable[tuple[int, int]] = (),
    are_one: Callable[[Evidence, Evidence], bool] = may_have_one_cause,
) -> list[int]:
    """Returns for each failure the index of the first failure that may have its cause.

    Args:
        evidence: the evidence of the failures of one backend.
        joined: further index pairs of failures that may have the same cause.
        are_one: judges the evidence of two failures.
    """
    first = list(range(len(evidence)))
    pairs = combinations(range(len(evidence)), 2)
    alike = (pair for pair in pairs if are_one(*(evidence[n] for n in pair)))
    for earlier, later in (*joined, *alike):
        low, high = sorted((first[earlier], first[later]))
        if low != high:
            first = [low if root == high else root for root in first]
    return first


MOST_TOLD = 5


def tell_cause(evidence: Sequence[Evidence]) -> str:
    """Describes in one sentence what several failures have in common."""
    shared = frozenset.intersection(*(failure.traits for failure in evidence))
    raised = {failure.raised for failure in evidence}
    if len(raised) == 1 and "" not in raised:
        sentence = f"each raises {raised.pop()}"
    elif shared:
        sentence = f"each needs {join(sorted(shared), ' and ')}"
    elif len({(failure.steps, failure.is_plain) for failure in evidence}) == 1:
        steps = list(dict.fromkeys(evidence[0].steps))
        sentence = f"each needs only {join(steps, ' and ')} before it"
        sentence = sentence if steps else "each fails in the first step"
    else:
        sentence = "the same steps lead to each"
    seen = join(sorted({failure.seen for failure in evidence}), " and ")
    whats = ", ".join(sorted({failure.what for failure in evidence}))
    return f"{sentence}; shows at {seen} ({whats})"


def join(names: Sequence[str], last: str) -> str:
    """Joins names with commas and `last`. Cuts the end of a long list."""
    if len(names) > MOST_TOLD:
        names = [*names[: MOST_TOLD - 1], f"{len(names) - MOST_TOLD + 1} more"]
    return last.join([", ".join(names[:-1]), names[-1]]) if names[1:] else "".join(names)


# --- failures with the same steps -------------------------------------------------------


FindSignature = Callable[[Program], str | None]
"""Returns the signature of a program's first divergence; None if the program agrees."""


def find_likely(
    failing: Sequence[tuple[Program, str]],
    find: FindSignature,
    causes: Sequence[int] | None = None,
) -> dict[int, int]:
    """Finds failures that may show the same bug as an earlier failure.

    Args:
        failing: shrunk programs with their signatures.
        find: runs a program.
        causes: the result of `join_causes`: for each failure the index of the first
            failure that may have its cause; None if no causes are known.

    Returns:
        A map from the index of each such failure to the index of the earliest failure
        with the same bug.
    """
    first = list(range(len(failing)) if causes is None else causes)
    for later, earlier in ((n, m) for n in range(len(failing)) for m in range(n)):
        if first[later] == first[earlier]:
            continue
        older, newer = failing[earlier], failing[later]
        if is_likely_one(older[0], *newer, find) or is_likely_one(newer[0], *older, find):
            low, high = sorted((first[earlier], first[later]))
            first = [low if root == high else root for root in first]
    return {index: root for index, root in enumerate(first) if index != root}


def is_likely_one(
    first: Program, second: Program, signature: str, find: FindSignature
) -> bool:
    """Returns whether the steps before the first failure also lead to the second failure.

    Returns True if the last step of the second program fails with `signature` after the
    steps of the first program, and does not fail if any one of these steps is missing.
    Both programs are shrunk.
    """
    for program in list_seen_otherwise(first, second):
        ops = program.ops
        if find(program) != signature:
            continue
        shorter = [
            replace(program, ops=[*ops[:n], *ops[n + 1 :]]) for n in range(len(ops) - 1)
        ]
        if all(find(candidate) != signature for candidate in shorter):
            return True
    return False


def list_seen_otherwise(first: Program, second: Program) -> Iterator[Program]:
    """Yields two programs: the first program with its last step replaced by the last step
    of the second program, and the first program followed by that step. Yields both with
    the config of each program."""
    if not first.ops or not second.ops:
        return
    last = second.ops[-1]
    for config in (first.config, second.config):
        for ops in ([*first.ops[:-1], last], [*first.ops, last]):
            if is_telling(first, ops[:-1]):
                yield replace(first, config=config, ops=ops)


def is_telling(program: Program, ops: Sequence[Op]) -> bool:
    """Returns whether the steps are evidence for a cause. If the steps only repeat one
    plain operation, such as `update`, they are no evidence, because such steps precede
    most failures."""
    return len({op["op"] for op in ops}) > 1 or any(is_special(program, op) for op in ops)
