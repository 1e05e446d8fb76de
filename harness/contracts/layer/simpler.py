"""Simpler layer programs: fewer caches and snapshots, shorter updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import list_each, replace_at
from lockstep.harness.contracts.layer.operations import OPERATIONS
from lockstep.harness.contracts.operation import Op, list_names, rename
from lockstep.harness.core.document import MAX_LENGTH

FEW = 10
"""With so few operations left, one is left out for tokens more in others."""

MORE = 3
"""Tokens more, at most."""


def merge_updates(first: Op, second: Op) -> Op | None:
    """Joins two updates of one cache in a row."""
    updates = first["op"] == second["op"] == "update"
    if not updates or first["cache"] != second["cache"]:
        return None
    length = first["length"] + second["length"]
    return {**first, "length": length} if length <= MAX_LENGTH else None


def simplify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One cache or snapshot fewer; a snapshot in the place of captures; shorter updates;
    an operation fewer for longer ones."""
    for place, op in enumerate(ops):
        for what, source, result in list_passed_on(op):
            names = {result: source}
            later = ops[place + 1 :]
            after = [rename(each, OPERATIONS, what, names) for each in later]
            yield [*ops[:place], *after]
    yield from list_fewer_caches(ops)
    yield from list_plain_snapshots(ops)
    yield from list_shorter_updates(ops)
    yield from list_single_updates(ops)
    if len(ops) <= FEW:
        yield from list_longer_updates(ops)


def list_fewer_caches(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lets one cache do what another does."""
    named = (name for op in ops for name in list_names(op, OPERATIONS, "cache"))
    caches = sorted({"a", *named})
    for name in caches:
        for other in caches:
            if other < name:
                yield [rename(op, OPERATIONS, "cache", {name: other}) for op in ops]


def list_plain_snapshots(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """A snapshot in the place of captures that were prepared and taken."""
    for place, op in enumerate(ops):
        if op["op"] != "take":
            continue
        before = [each for each in ops[:place] if each["op"] != "prepare"]
        for name in op["into"]:
            plain = {"op": "snapshot", "from": 0, "into": name, "cache": op["cache"]}
            for earlier in list_each(before, plain):
                yield [*earlier, *ops[place + 1 :]]


def list_shorter_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """An update that is shorter by half or by a token, or gone, and every offset after it
    as much lower; the same without the offsets."""
    for place, op in enumerate(ops):
        if op["op"] != "update":
            continue
        length, after = op["length"], ops[place + 1 :]
        for less in sorted({length - 1, length // 2, 1} - {0}, reverse=True):
            kept = [{**op, "length": length - less}] if length > less else []
            lowered = [move_offsets(later, -less) for later in after]
            yield [*ops[:place], *kept, *lowered]
            yield [*ops[:place], *kept, *after]


def list_single_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One update in the place of two neighbours, shorter than both together."""
    for place in range(len(ops) - 1):
        merged = merge_updates(ops[place], ops[place + 1])
        if merged is not None:
            for length in range(1, min(8, merged["length"])):
                yield [*ops[:place], {**merged, "length": length}, *ops[place + 2 :]]


def list_longer_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """An operation fewer, and one update or two longer in its stead, with every offset
    after the first of them as much higher or as it was."""
    for place in range(len(ops)):
        shorter = replace_at(ops, place)
        updates = [n for n, op in enumerate(shorter) if op["op"] == "update"]
        for more in range(1, MORE + 1):
            for first in updates:
                for longer in lengthen(shorter, first, more):
                    yield longer
                    for second in updates:
                        if second > first:
                            yield from lengthen(longer, second, more)


def lengthen(ops: Sequence[Op], place: int, more: int) -> Iterator[list[Op]]:
    op = {**ops[place], "length": min(MAX_LENGTH, ops[place]["length"] + more)}
    yield [*ops[:place], op, *(move_offsets(each, more) for each in ops[place + 1 :])]
    yield replace_at(ops, place, op)


OFFSETS = ("from", "target", "at")


def move_offsets(op: Op, by: int) -> Op:
    """Every offset that the operation names, higher or lower; 0 is the beginning, and
    stays."""

    def move(offset: int) -> int:
        return max(0, offset + by) if offset else 0

    moved: dict[str, Any] = {name: move(op[name]) for name in OFFSETS if name in op}
    if "offsets" in op:
        moved["offsets"] = sorted(set(map(move, op["offsets"])))
    return {**op, **moved}


LETTERS: Mapping[str, Callable[[int], str]] = {
    "cache": lambda number: chr(ord("a") + number),
    "snapshot": "s{}".format,
}
"""Caches are called a, b, c and snapshots s0, s1, …."""


def list_passed_on(op: Op) -> list[tuple[str, str, str]]:
    """("snapshot" or "cache", input, output) of an operation without which its input can
    stand for its output."""
    sides = [op[side] for side in ("parent", "child") if op.get(side)]
    if op["op"] == "clone":
        return [("cache", op["cache"], op["into"])]
    if op["op"] == "split":
        return [("snapshot", op["snapshot"], output) for output in sides]
    if op["op"] == "merge":
        return [("snapshot", source, op["into"]) for source in sides]
    return []
