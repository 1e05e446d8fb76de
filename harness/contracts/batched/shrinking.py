"""Simpler batched programs: fewer batches and rows, shorter updates, less padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import replace_at
from lockstep.harness.contracts.operation import Op, Operations, list_names, rename
from lockstep.harness.core.document import MAX_LENGTH

LETTERS: Mapping[str, Callable[[int], str]] = {
    "cache": lambda number: chr(ord("a") + number),
    "saved": "s{}".format,
}
"""Batches and single caches are called a, b, c, and saved contents s0, s1, …."""


def merge_updates(first: Op, second: Op) -> Op | None:
    """Joins two updates of one batch or cache in a row."""
    updates = first["op"] == second["op"] == "update"
    if not updates or first["cache"] != second["cache"] or second["left"]:
        return None
    length = first["length"] + second["length"]
    return {**first, "length": length} if length <= MAX_LENGTH else None


def simplify(ops: Sequence[Op], operations: Operations) -> Iterator[list[Op]]:
    """One name fewer; a row fewer everywhere; shorter updates, and less padding."""
    yield from list_fewer_names(ops, operations)
    yield from list_fewer_rows(ops)
    for place, op in enumerate(ops):
        for simpler in list_simpler(op):
            yield replace_at(ops, place, simpler)
    yield from list_shorter_announcements(ops)


def list_fewer_names(ops: Sequence[Op], operations: Operations) -> Iterator[list[Op]]:
    """Lets one batch or cache do what another does."""
    names = sorted({name for op in ops for name in list_names(op, operations, "cache")})
    for name in names:
        for other in names:
            if other < name:
                yield [rename(op, operations, "cache", {name: other}) for op in ops]


LISTS = ("left", "lengths", "counts")
"""Fields with a number for each row."""


def list_fewer_rows(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Leaves out one row of the batches of a name, wherever it is spoken of."""
    opened = [op for op in ops if op["op"] == "open"]
    for name in dict.fromkeys(op["cache"] for op in opened):
        most = max(op["rows"] for op in opened if op["cache"] == name)
        for row in range(most if most > 1 else 0):
            yield [leave_out(op, row) if op["cache"] == name else op for op in ops]


def leave_out(op: Op, row: int) -> Op:
    """Returns an operation on a batch that has one row fewer."""
    changed: dict[str, Any] = {}
    if op["op"] == "open":
        changed["rows"] = max(1, op["rows"] - 1)
    elif op["op"] in ("filter", "select"):
        kept = [number for number in op["rows"] if number != row]
        changed["rows"] = [number - (number > row) for number in kept] or [0]
    elif op["op"] == "extract":
        changed["row"] = op["row"] - (op["row"] > row)
    for field in LISTS:
        if op.get(field):
            changed[field] = [*op[field][:row], *op[field][row + 1 :]]
    return {**op, **changed}


def list_simpler(op: Op) -> Iterator[Op]:
    """Simpler forms of one operation."""
    if op["op"] == "update":
        if op["left"] is not None:
            yield {**op, "left": None}
            yield from lower(op, "left", 0)
        for length in sorted({1, op["length"] // 2, op["length"] - 1} - {0}):
            if length < op["length"]:
                left = op["left"] and [min(one, length - 1) for one in op["left"]]
                yield {**op, "length": length, "left": left}
    elif op["op"] == "pad_right":
        yield from lower(op, "lengths", 1)
    elif op["op"] == "rollback":
        yield from lower(op, "counts", 0)
    elif op["op"] in ("filter", "select"):
        rows = op["rows"]
        if rows != sorted(rows):
            yield {**op, "rows": sorted(rows)}
        for place in range(len(rows) if len(rows) > 1 else 0):
            yield {**op, "rows": [*rows[:place], *rows[place + 1 :]]}


def lower(op: Op, field: str, least: int) -> Iterator[Op]:
    """One number of a list lower, by as much as possible or by one."""
    for place, number in enumerate(op[field]):
        for smaller in sorted({least, number - 1}):
            if least <= smaller < number:
                numbers = [*op[field][:place], smaller, *op[field][place + 1 :]]
                yield {**op, field: numbers}


def list_shorter_announcements(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """A column fewer of an announcement, and of the update behind it; the same update
    without any announcement."""
    for place, op in enumerate(ops):
        if op["op"] != "pad_right":
            continue
        ends = [
            at for at, one in enumerate(ops) if at > place and one["op"] == "finalize"
        ]
        if ends:
            kept = [*ops[:place], *ops[place + 1 : ends[0]], *ops[ends[0] + 1 :]]
            yield kept
        for at in range(place + 1, len(ops)):
            later = ops[at]
            if later["op"] == "update" and later["cache"] == op["cache"]:
                lengths = [max(1, length - 1) for length in op["lengths"]]
                shorter = replace_at(ops, place, {**op, "lengths": lengths})
                if later["length"] > 1:
                    one = {**later, "length": later["length"] - 1}
                    yield replace_at(shorter, at, one)
                else:
                    yield replace_at(shorter, at)
