"""Yields simpler batched programs: fewer batches and rows, shorter updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.rewrites import (
    Changed,
    Rewrite,
    find,
    list_simpler_parts,
    replace_at,
    simplify_each,
)

LISTS = ("left", "lengths", "counts")
"""The fields with one number per row."""


def list_fewer_rows(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs without one row: removes the row from all operations on the batches
    with one name."""
    opened = [op for op in ops if op["op"] == "open"]
    for name in dict.fromkeys(op["cache"] for op in opened):
        most = max(op["rows"] for op in opened if op["cache"] == name)
        for row in range(most if most > 1 else 0):
            yield [leave_out(op, row) if op["cache"] == name else op for op in ops]


def leave_out(op: Op, row: int) -> Op:
    """Adapts an operation to a batch without this row."""
    changed: dict[str, Any] = {}
    if op["op"] == "open":
        changed["rows"] = max(1, op["rows"] - 1)
    elif op["op"] in ("filter", "select"):
        padding = [number for number in op["rows"] if number != row]
        changed["rows"] = [number - (number > row) for number in padding] or [0]
    elif op["op"] == "extract":
        changed["row"] = op["row"] - (op["row"] > row)
    for field in LISTS:
        if op.get(field):
            changed[field] = replace_at(op[field], row)
    return {**op, **changed}


def list_simpler(op: Op) -> Iterator[Op]:
    """Yields simpler forms of one operation."""
    if op["op"] == "update":
        if op["left"] is not None:
            yield {**op, "left": None}
            yield from lower(op, "left", 0)
        for length in sorted({1, op["length"] // 2, op["length"] - 1} - {0}):
            if length < op["length"]:
                padding = op["left"] and [min(most, length - 1) for most in op["left"]]
                yield {**op, "length": length, "left": padding}
    elif op["op"] == "pad_right":
        yield from lower(op, "lengths", 1)
    elif op["op"] == "rollback":
        yield from lower(op, "counts", 0)
    elif op["op"] in ("filter", "select"):
        rows = op["rows"]
        if rows != sorted(rows):
            yield {**op, "rows": sorted(rows)}
        for index in range(len(rows) if len(rows) > 1 else 0):
            yield {**op, "rows": replace_at(rows, index)}


def lower(op: Op, field: str, least: int) -> Iterator[Op]:
    """Yields the operation with one number of `field` lowered: to `least`, and by 1."""
    for index, number in enumerate(op[field]):
        for smaller in sorted({least, number - 1}):
            if least <= smaller < number:
                yield {**op, field: replace_at(op[field], index, smaller)}


def shorten_announcements(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Removes a padding announcement, or shortens it and a later update by 1 column."""
    for index, op in find(ops, "pad_right"):
        after = [at for at, _ in find(ops, "finalize") if at > index]
        if after:
            yield [*ops[:index], *ops[index + 1 : after[0]], *ops[after[0] + 1 :]]
        lengths = [max(1, length - 1) for length in op["lengths"]]
        shorter = replace_at(ops, index, {**op, "lengths": lengths})
        for at, update in find(ops, "update"):
            if at > index and update["cache"] == op["cache"]:
                less = {**update, "length": update["length"] - 1}
                yield replace_at(shorter, at, *([less] if less["length"] else []))


def propose_configs(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """Yields simpler configs of a list: makes one cache plain, or removes or lowers one
    of its sizes."""
    for simpler in list_simpler_parts(config["caches"], {"kind": "batch-kv"}):
        yield {**config, "caches": simpler}, ops


REWRITES: Sequence[Rewrite] = (
    list_fewer_rows,
    simplify_each(list_simpler),
    shorten_announcements,
)
