"""Which failures probably have one cause, and the evidence for it.

Programs are shrunk: no operation can be left out of one. So those in a program that not
every backend has, or that have a field of their own, are essential for its failure.
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
"""The message about an exception: its type and its place in the backend's code."""

COMPARED = re.compile(r"is (-?[0-9]+), not (-?[0-9]+)")


@dataclass(frozen=True)
class Evidence:
    """What a failure tells of its cause.

    Attributes:
        family: contract and kind.
        steps: the operations before the one that fails, by name.
        essential: what is essential in them; if there is nothing, in the one that fails.
        is_plain: there is nothing essential before the one that fails.
        traits: what is special in all of them.
        seen: the operation that fails.
        what: see `Divergence`.
        symptom: how the answer differs, without the numbers.
        raised: the exception and its place, in words; empty without one.
        is_open: the contract leaves choices to the backend, so many ways lead anywhere.
    """

    family: tuple[str, str]
    steps: tuple[str, ...]
    essential: frozenset[str]
    is_plain: bool
    traits: frozenset[str]
    seen: str
    what: str
    symptom: str
    raised: str
    is_open: bool


def gather_evidence(
    program: Program, step: int | None, what: str, message: str
) -> Evidence:
    """The evidence in a shrunk program and in what its divergence says.

    step: the one that fails; None for the last.
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
        f"{raised[1]} {raised[2]}" if raised else "",
        program.rules.leaves_choices,
    )


ALIAS = "alias"


def get_evidence(program: Program, seen: Divergence) -> Evidence:
    return gather_evidence(program, seen.step, seen.what, seen.message)


def normalize(what: str, message: str) -> str:
    """The difference without numbers and places, in a form that is to be compared."""
    if what == ALIAS:
        return ALIAS  # whichever operation handed the array out
    missing, extra = " missing" in message, " too much" in message
    if missing or extra:
        marks = [mark for mark in ("NaN", "zeros", "pad ") if mark in message]
        kind = "contents" if what == "mask" else what
        return " ".join([kind, f"missing {missing}", f"extra {extra}", *marks[:1]])
    compared = COMPARED.search(message)
    signs = f" more {int(compared[1]) > int(compared[2])}" if compared else ""
    bare = re.sub(r"[0-9.]+", "#", re.sub(r"\[.*?\]", "[]", message))
    return f"{what} {bare}{signs}"


def have_one_cause(first: Evidence, second: Evidence) -> bool:
    """Whether the evidence says that two failures probably have one cause."""
    if first.family[0] != second.family[0]:
        return False
    if first.raised or second.raised:
        return bool(first.raised == second.raised) or have_same_essentials(first, second)
    is_same = first.symptom == second.symptom
    if first.is_plain and second.is_plain and first.steps == second.steps and is_same:
        return True
    return have_same_essentials(first, second)


def have_same_essentials(first: Evidence, second: Evidence) -> bool:
    """Whether the same operations are essential for both, and they differ alike as far as
    these operations alone tell too little."""
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
    evidence: Sequence[Evidence], joined: Iterable[tuple[int, int]] = ()
) -> list[int]:
    """For each failure the index of the first one with its cause.

    Args:
        evidence: of failures of one backend.
        joined: pairs of indices that are known to have one cause.
    """
    first = list(range(len(evidence)))
    pairs = combinations(range(len(evidence)), 2)
    alike = (pair for pair in pairs if have_one_cause(*(evidence[n] for n in pair)))
    for earlier, later in (*joined, *alike):
        low, high = sorted((first[earlier], first[later]))
        if low != high:
            first = [low if root == high else root for root in first]
    return first


MOST_TOLD = 5


def tell_cause(evidence: Sequence[Evidence]) -> str:
    """What failures with one cause share, in a sentence."""
    shared = frozenset.intersection(*(failure.traits for failure in evidence))
    raised = {failure.raised for failure in evidence}
    if len(raised) == 1 and "" not in raised:
        sentence = f"each raises {raised.pop()}"
    elif shared:
        sentence = f"each needs {join(sorted(shared), ' and ')}"
    elif len({failure.steps for failure in evidence}) == 1:
        steps = list(dict.fromkeys(evidence[0].steps))
        sentence = f"each needs nothing but {join(steps, ' and ')} before it"
        sentence = sentence if steps else "each fails in the first step"
    else:
        sentence = "the same steps lead to each"
    seen = join(sorted({failure.seen for failure in evidence}), " and ")
    whats = ", ".join(sorted({failure.what for failure in evidence}))
    return f"{sentence}; shows at {seen} ({whats})"


def join(names: Sequence[str], last: str) -> str:
    """Words in a list; of a long one the beginning."""
    if len(names) > MOST_TOLD:
        names = [*names[: MOST_TOLD - 1], f"{len(names) - MOST_TOLD + 1} more"]
    return last.join([", ".join(names[:-1]), names[-1]]) if names[1:] else "".join(names)


# --- which failures the same steps lead to ----------------------------------------------


FindSignature = Callable[[Program], str | None]
"""The signature of a program's first divergence, or None if it agrees."""


def find_likely(
    failing: Sequence[tuple[Program, str]],
    find: FindSignature,
    causes: Sequence[int] | None = None,
) -> dict[int, int]:
    """Finds failures that are likely one bug with an earlier one.

    Args:
        failing: shrunk programs with their signatures.
        find: runs a program.
        causes: for each the index of one with the same cause, as `join_causes` says; None
            if nothing is known.

    Returns:
        The index of each such failure → that of the earliest one with that bug.
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
    """Whether the steps that lead to the first failure also lead to the second one.

    They do if the last step of the second program fails with `signature` after them, and
    no longer fails when any of them is left out: two bugs would hardly need the same
    steps. Both programs are shrunk.
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
    """Programs from the steps of the first one, with the last step of the second in place
    of the last one, or behind it."""
    if not first.ops or not second.ops:
        return
    last = second.ops[-1]
    for config in (first.config, second.config):
        for ops in ([*first.ops[:-1], last], [*first.ops, last]):
            if is_telling(first, ops[:-1]):
                yield replace(first, config=config, ops=ops)


def is_telling(program: Program, ops: Sequence[Op]) -> bool:
    """Whether these steps are more than repetitions of one plain operation, such as an
    update, which lead anywhere."""
    return len({op["op"] for op in ops}) > 1 or any(is_special(program, op) for op in ops)
