"""Yields simpler layer programs: fewer caches and snapshots, shorter updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.harness.contracts.layer.operations import OPERATIONS
from lockstep.harness.contracts.operation import Op, rename
from lockstep.harness.contracts.rewrites import (
    Rewrite,
    find,
    join_names,
    merge_updates,
    replace_at,
)
from lockstep.harness.core.document import MAX_LENGTH

FEW = 10
"""The largest program in which shrinking removes an operation by lengthening updates."""

MOST_ADDED = 3
"""The maximum number of tokens that are added for a removed operation."""


def skip_copies(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Removes an operation that derives an object from another, such as a clone; later
    operations use the original object."""
    for index, op in enumerate(ops):
        for sort, source, result in list_passed_on(op):
            names = {result: source}
            after = [rename(later, OPERATIONS, sort, names) for later in ops[index + 1 :]]
            yield [*ops[:index], *after]


def list_plain_snapshots(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Replaces a `take`, and the `prepare` before it, by a `snapshot`."""
    for index, op in find(ops, "take"):
        earlier_ops = [earlier for earlier in ops[:index] if earlier["op"] != "prepare"]
        for name in op["into"]:
            plain = {"op": "snapshot", "from": 0, "into": name, "cache": op["cache"]}
            for at in range(len(earlier_ops), -1, -1):
                yield [*earlier_ops[:at], plain, *earlier_ops[at:], *ops[index + 1 :]]


def list_shorter_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Shortens an update by all but one token, half, or one token, or removes it.

    Yields each program twice: with all later offsets lowered by the same amount, and with
    the offsets unchanged.
    """
    for index, op in find(ops, "update"):
        length, after = op["length"], ops[index + 1 :]
        for less in sorted({length - 1, length // 2, 1} - {0}, reverse=True):
            shorter = [{**op, "length": length - less}] if length > less else []
            lowered = [move_offsets(later, -less) for later in after]
            yield [*ops[:index], *shorter, *lowered]
            yield [*ops[:index], *shorter, *after]


def list_single_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Replaces two adjacent updates by one update, shorter than both together."""
    for index in range(len(ops) - 1):
        merged = merge_updates(ops[index], ops[index + 1])
        if merged is not None:
            for length in range(1, min(8, merged["length"])):
                yield [*ops[:index], {**merged, "length": length}, *ops[index + 2 :]]


def list_longer_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Removes an operation and lengthens one or two updates.

    The offsets after the first longer update rise by the same amount, or stay.
    """
    for left_out in range(len(ops) if len(ops) <= FEW else 0):
        shorter = replace_at(ops, left_out)
        updates = [index for index, _ in find(shorter, "update")]
        for added in range(1, MOST_ADDED + 1):
            for first in updates:
                for longer in lengthen(shorter, first, added):
                    yield longer
                    for second in updates:
                        if second > first:
                            yield from lengthen(longer, second, added)


def lengthen(ops: Sequence[Op], index: int, added: int) -> Iterator[list[Op]]:
    op = {**ops[index], "length": min(MAX_LENGTH, ops[index]["length"] + added)}
    yield [*ops[:index], op, *(move_offsets(later, added) for later in ops[index + 1 :])]
    yield replace_at(ops, index, op)


OFFSETS = ("from", "target", "at")


def move_offsets(op: Op, by: int) -> Op:
    """Returns the operation with all its offsets moved; an offset of 0 stays."""

    def move(offset: int) -> int:
        return max(0, offset + by) if offset else 0

    moved: dict[str, Any] = {name: move(op[name]) for name in OFFSETS if name in op}
    if "offsets" in op:
        moved["offsets"] = sorted(set(map(move, op["offsets"])))
    return {**op, **moved}


def list_passed_on(op: Op) -> list[tuple[str, str, str]]:
    """Lists the outputs of an operation that an input can replace.

    Each item is (sort, input, output); the sort is "snapshot" or "cache".
    """
    halves = [op[half] for half in ("parent", "child") if op.get(half)]
    if op["op"] == "clone":
        return [("cache", op["cache"], op["into"])]
    if op["op"] == "split":
        return [("snapshot", op["snapshot"], output) for output in halves]
    if op["op"] == "merge":
        return [("snapshot", source, op["into"]) for source in halves]
    return []


REWRITES: Sequence[Rewrite] = (
    skip_copies,
    join_names(OPERATIONS, "cache", "a"),
    list_plain_snapshots,
    list_shorter_updates,
    list_single_updates,
    list_longer_updates,
)
