"""Whether two failures of one backend are likely one bug, seen in two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.contracts.base import Op
from harness.program import Program
from harness.shrink import leave_out

FindSignature = Callable[[Program], str | None]
"""The signature of a program's first divergence, or None if it agrees."""


def is_likely_one(
    first: Program, second: Program, signature: str, find: FindSignature
) -> bool:
    """Whether the steps that lead to the first failure lead to the second one too: when
    the last step of the second follows them, it fails as it did, with `signature`, and no
    longer when any of them is left out. That every one of them is needed for both is hard
    to explain by two bugs.

    first, second: made as short as they go.
    """
    for program in list_seen_otherwise(first, second):
        ops = program.ops
        if find(program) != signature:
            continue
        shorter = [
            replace(program, ops=leave_out(ops, [n])) for n in range(len(ops) - 1)
        ]
        if all(find(one) != signature for one in shorter):
            return True
    return False


def list_seen_otherwise(first: Program, second: Program) -> Iterator[Program]:
    """The steps of the first program, the last one as in the second; and all of them,
    with the last one of the second in addition."""
    if not first.ops or not second.ops:
        return
    last = second.ops[-1]
    for config in (first.config, second.config):
        for ops in ([*first.ops[:-1], last], [*first.ops, last]):
            if is_telling(ops[:-1], first):
                yield replace(first, config=config, ops=ops)


def is_telling(ops: list[Op], program: Program) -> bool:
    return len(ops) > 1
