"""Yields simpler unified programs: fewer rows, lower positions, fewer sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from lockstep.harness.contracts.operation import Config, Op, list_names
from lockstep.harness.contracts.rewrites import (
    Changed,
    Rewrite,
    find,
    list_simpler_parts,
    list_steps,
    replace_at,
)
from lockstep.harness.contracts.unified.operations import OPERATIONS, rename_owner

LETTERS: Mapping[str, Callable[[int], str]] = {"saved": "s{}".format}
POSITIONS = ("begin", "end", "position", "length")
"""The fields whose value is a position in the sequence."""


def merge_passes(first: Op, second: Op) -> Op | None:
    """Merges two consecutive passes that have no exceptions, no images and no
    `reserve`."""
    if not first["op"] == second["op"] == "forward":
        return None
    special = ("multimodal", "reserve", "except")
    if any(op[name] for op in (first, second) for name in special):
        return None
    merged = {name: [*first[name], *second[name]] for name in ("positions", "sequences")}
    if first["coordinates"] or second["coordinates"]:
        merged["coordinates"] = [*list_coordinates(first), *list_coordinates(second)]
    return {**first, **merged}


def list_coordinates(op: Op) -> Sequence[Sequence[int]]:
    """Lists (y, x) of the rows of a pass, even if all rows are text."""
    return op["coordinates"] or [[at, at] for at in op["positions"]]


def list_fewer_rows(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs without some rows of a pass: first without half of the rows,
    finally without one row."""
    for index, op in list_passes(ops):
        rows = len(op["positions"])
        for begin, end in list_runs(rows):
            yield replace_at(ops, index, leave_out_rows(op, begin, end))
        for row in range(rows):
            owner, position = op["sequences"][row], op["positions"][row]
            shorter = leave_out_rows(op, row, row + 1)
            after = [*([shorter] if rows > 1 else []), *ops[index + 1 :]]
            lowered = [lower_positions(later, owner, position) for later in after]
            yield [*ops[:index], *lowered]


def list_passes(ops: Sequence[Op]) -> Iterator[tuple[int, Op]]:
    """Yields (index, operation) of each pass with equal numbers of positions and
    sequences."""
    for index, op in find(ops, "forward"):
        if len(op["positions"]) == len(op["sequences"]):
            yield index, op


def list_runs(rows: int) -> Iterator[tuple[int, int]]:
    """Yields ranges [begin, end) of rows to remove: first half of the rows, finally one
    row."""
    size = rows // 2
    while size:
        for begin in range(0, rows, size):
            yield begin, min(rows, begin + size)
        size //= 2


def list_fewer_owners(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs with sequences numbered from 0, and with two sequences joined or
    swapped."""
    owners = sorted(list_owners(ops))
    yield [rename_owner(op, {old: new for new, old in enumerate(owners)}) for op in ops]
    for index, owner in enumerate(owners):
        for lower in owners[:index]:
            yield [rename_owner(op, {owner: lower}) for op in ops]
            yield [rename_owner(op, {owner: lower, lower: owner}) for op in ops]


def list_fewer_copies(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs without a `copy_prefix`; later operations use the source instead
    of the target."""
    for index, op in find(ops, "copy_prefix"):
        names = {op["target"]: op["source"]}
        yield [*ops[:index], *(rename_owner(later, names) for later in ops[index + 1 :])]


def list_lower_positions(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs with lower positions.

    Lowers all positions after a gap, in one sequence or in all sequences, by the whole
    gap, by a part of the gap, or by 1. Then lowers the positions of single rows, and
    their other coordinates.
    """
    for owner in (None, *sorted(list_owners(ops))):
        positions = sorted({-1, *list_positions(ops, owner)})
        for lower_end, after in pairwise(positions):
            for less in list_steps(after - lower_end - 1):
                yield [lower_positions(op, owner, lower_end, less) for op in ops]
        yield [lower_positions(op, owner, 0) for op in ops]
    for index, op in list_passes(ops):
        for row, position in enumerate(op["positions"]):
            for less in list_steps(position):
                moved = replace_at(op["positions"], row, position - less)
                yield replace_at(ops, index, {**op, "positions": moved})
        for row, (y, x) in enumerate(op["coordinates"]):
            lower = [[y - less, x] for less in list_steps(y)]
            for pair in [*lower, *([y, x - less] for less in list_steps(x))]:
                pairs = replace_at(op["coordinates"], row, pair)
                yield replace_at(ops, index, {**op, "coordinates": pairs})


def list_positions(ops: Sequence[Op], owner: int | None) -> Iterator[int]:
    """Yields the positions in operations on a sequence; None stands for all sequences."""
    for op in ops:
        if op["op"] == "forward":
            rows = zip(op["positions"], op["sequences"], strict=False)
            yield from (at for at, row in rows if owner in (None, row) and at >= 0)
        elif owner in (None, op.get("sequence", op.get("source"))):
            values = (op.get(name) for name in POSITIONS)
            yield from (value for value in values if value is not None and value >= 0)


def propose_configs(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """Yields simpler configs, with operations that fit.

    The simpler config has as many cells but less padding or fewer sequences; or fewer
    cells and rows; or two axes of positions; or simpler caches in a wrapper.
    """
    count, capacity = config["sequences"], config["capacity"]
    room = -(-count * capacity // config["cache_padding"]) * config["cache_padding"]
    if config["cache_padding"] > 1:
        for share in (room // count, -(-room // count)):
            yield {**config, "cache_padding": 1, "capacity": share}, ops
    used = max(list_owners(ops) | {0}) + 1
    if used < count:
        yield {**config, "sequences": used}, ops
        yield {**config, "sequences": used, "capacity": -(-room // used)}, ops
        yield {**config, "sequences": used, "capacity": room // used}, ops
    if len(config["sections"] or ()) > 2:
        yield {**config, "sections": [1, 1], "key_dim": 4}, ops
    members = config["caches"]
    for index in range(len(members) if len(members) > 1 else 0):
        yield {**config, "caches": replace_at(members, index)}, ops
    for simpler in list_simpler_parts(members, {"kind": "causal"}):
        yield {**config, "caches": simpler}, ops
    if capacity > 1:
        yield from list_less_room(config, ops)


def list_less_room(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    smaller = {**config, "capacity": config["capacity"] - 1}
    for index, op in list_passes(ops):
        rows = len(op["positions"])
        for fewer in {rows - config["sequences"], rows // 2}:
            if 0 < fewer < rows:
                changed = replace_at(ops, index, leave_out_rows(op, fewer, rows))
                yield smaller, changed
                yield config, changed


def leave_out_rows(op: Op, begin: int, end: int) -> Op:
    """Returns the pass without the rows [begin, end)."""
    shorter = dict(op)
    for name in ("positions", "sequences", "coordinates"):
        shorter[name] = [*op[name][:begin], *op[name][end:]]
    for name in ("except", "multimodal"):
        rows = [row for row in op[name] if not begin <= row < end]
        shorter[name] = [row - (end - begin) * (row >= end) for row in rows]
    return shorter


def lower_positions(op: Op, owner: int | None, position: int, less: int = 1) -> Op:
    """Lowers the positions of an operation that are greater than `position`.

    Args:
        op: the operation.
        owner: the sequence whose positions change; None for all.
        position: the last position that stays.
        less: the difference.
    """

    def get_lower(value: int | None) -> int | None:
        return value - less if value is not None and value > position else value

    if op["op"] == "forward":
        rows = zip(op["positions"], op["sequences"], strict=False)
        positions = [get_lower(at) if owner in (None, row) else at for at, row in rows]
        if len(positions) < len(op["positions"]):
            return op
        rows = zip(op["coordinates"], op["sequences"], strict=False)
        coordinates = [
            [*map(get_lower, pair)] if owner in (None, row) else pair
            for pair, row in rows
        ]
        return {**op, "positions": positions, "coordinates": coordinates}
    if owner not in (None, op.get("sequence", op.get("source"))):
        return op
    return {**op, **{name: get_lower(op[name]) for name in POSITIONS if name in op}}


def list_owners(ops: Sequence[Op]) -> set[int]:
    return {name for op in ops for name in list_names(op, OPERATIONS, "sequence")}


REWRITES: Sequence[Rewrite] = (
    list_fewer_rows,
    list_fewer_owners,
    list_fewer_copies,
    list_lower_positions,
)
