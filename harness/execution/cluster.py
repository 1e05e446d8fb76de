"""Tells which failures of one backend are likely one bug, seen in two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lockstep.harness.contracts.operation import Op
from lockstep.harness.core.document import drop_defaults
from lockstep.harness.execution.shrink import leave_out
from lockstep.harness.programs.program import Program

FindSignature = Callable[[Program], str | None]
"""The signature of a program's first divergence, or None if it agrees."""


def find_likely(
    failing: Sequence[tuple[Program, str]], find: FindSignature
) -> dict[int, int]:
    """Finds failures that are likely one bug with an earlier one.

    Args:
        failing: shrunk programs with their signatures.
        find: runs a program.

    Returns:
        The place of each such failure → the place of the earliest one with that bug.
    """
    first = list(range(len(failing)))
    for later, earlier in ((n, m) for n in range(len(failing)) for m in range(n)):
        if first[later] == first[earlier]:
            continue
        one, other = failing[earlier], failing[later]
        if is_likely_one(one[0], *other, find) or is_likely_one(other[0], *one, find):
            low, high = sorted((first[earlier], first[later]))
            first = [low if root == high else root for root in first]
    return {place: root for place, root in enumerate(first) if place != root}


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
        shorter = [replace(program, ops=leave_out(ops, [n])) for n in range(len(ops) - 1)]
        if all(find(one) != signature for one in shorter):
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


def is_special(program: Program, op: Op) -> bool:
    """Whether an operation is not among those that every backend has, or has a field that
    is not at its default."""
    fields = program.rules.operations[op["op"]].fields
    optional = {name: fields[name] for name in fields if "default" in fields[name]}
    return bool(drop_defaults(op, optional)) or op["op"] not in program.rules.required
