"""Simpler unified programs: fewer rows, lower positions, fewer sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lockstep.harness.contracts.contract import Changed, list_steps, replace_at
from lockstep.harness.contracts.operation import Config, Op, list_names
from lockstep.harness.contracts.unified.operations import OPERATIONS, rename_owner

LETTERS: Mapping[str, Callable[[int], str]] = {"saved": "s{}".format}
PLACES = ("begin", "end", "position", "length")
"""The fields that hold a position of the sequence."""


def merge_passes(first: Op, second: Op) -> Op | None:
    """Joins two passes in a row, if neither has exceptions, an image or `reserve`."""
    if not first["op"] == second["op"] == "forward":
        return None
    special = ("multimodal", "reserve", "except")
    if any(op[name] for op in (first, second) for name in special):
        return None
    return {
        **first,
        "positions": [*first["positions"], *second["positions"]],
        "sequences": [*first["sequences"], *second["sequences"]],
    }


def simplify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Proposes programs that are simpler by one step.

    They have fewer rows, alone or with lower positions of the sequence after them;
    sequences with lower numbers, or two joined into one; no copies; lower positions.
    """
    yield from list_fewer_rows(ops)
    yield from list_fewer_owners(ops)
    yield from list_fewer_copies(ops)
    yield from list_lower_positions(ops)


def list_fewer_rows(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lists programs with fewer rows in a pass, from half of them to one."""
    for place, op in list_passes(ops):
        rows = len(op["positions"])
        for begin, end in list_runs(rows):
            yield replace_at(ops, place, leave_out_rows(op, begin, end))
        for row in range(rows):
            owner, position = op["sequences"][row], op["positions"][row]
            shorter = leave_out_rows(op, row, row + 1)
            kept = [shorter] if rows > 1 else []
            later = [lower(each, owner, position) for each in [*kept, *ops[place + 1 :]]]
            yield [*ops[:place], *later]


def list_passes(ops: Sequence[Op]) -> Iterator[tuple[int, Op]]:
    """Iterates over (place, pass) of the passes with as many positions as sequences."""
    for place, op in enumerate(ops):
        if op["op"] == "forward" and len(op["positions"]) == len(op["sequences"]):
            yield place, op


def list_runs(rows: int) -> Iterator[tuple[int, int]]:
    """Iterates over (begin, end) of rows to leave out, from half of all to one row."""
    size = rows // 2
    while size:
        for begin in range(0, rows, size):
            yield begin, min(rows, begin + size)
        size //= 2


def list_fewer_owners(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lists programs with sequences numbered from 0; with two swapped, or joined."""
    owners = sorted(list_owners(ops))
    yield [rename_owner(op, {old: new for new, old in enumerate(owners)}) for op in ops]
    for owner in owners:
        for other in (each for each in owners if each < owner):
            yield [rename_owner(op, {owner: other}) for op in ops]
            yield [rename_owner(op, {owner: other, other: owner}) for op in ops]


def list_fewer_copies(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lists programs without a copy, with the source in the place of the target."""
    for place, op in enumerate(ops):
        if op["op"] == "copy_prefix":
            names = {op["target"]: op["source"]}
            after = [rename_owner(later, names) for later in ops[place + 1 :]]
            yield [*ops[:place], *after]


def list_lower_positions(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lists programs with lower positions after a gap, in one sequence or all: by the
    whole gap, half of it or one; and the same for single rows."""
    for owner in (None, *sorted(list_owners(ops))):
        positions = sorted({-1, *list_positions(ops, owner)})
        for before, after in pairwise(positions):
            for less in list_steps(after - before - 1):
                yield [lower(op, owner, before, less) for op in ops]
        yield [lower(op, owner, 0) for op in ops]
    for place, op in list_passes(ops):
        for row, position in enumerate(op["positions"]):
            for less in list_steps(position):
                moved = replace_at(op["positions"], row, position - less)
                yield replace_at(ops, place, {**op, "positions": moved})


def list_positions(ops: Sequence[Op], owner: int | None) -> Iterator[int]:
    """Iterates over the positions that operations name, of one sequence or of all."""
    for op in ops:
        if op["op"] == "forward":
            rows = zip(op["positions"], op["sequences"], strict=False)
            yield from (at for at, own in rows if owner in (None, own) and at >= 0)
        elif owner in (None, op.get("sequence", op.get("source"))):
            values = (op.get(name) for name in PLACES)
            yield from (value for value in values if value is not None and value >= 0)


def simplify_config(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """Proposes simpler configs: the same room by capacity in the place of padding or
    sequences; less room, with fewer rows; simpler caches in a wrapper."""
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
    for caches in list_simpler_caches(config["caches"]):
        yield {**config, "caches": caches}, ops
    if capacity > 1:
        yield from list_less_room(config, ops)


def list_less_room(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    smaller = {**config, "capacity": config["capacity"] - 1}
    for place, op in list_passes(ops):
        rows = len(op["positions"])
        for fewer in {rows - config["sequences"], rows // 2}:
            if 0 < fewer < rows:
                changed = replace_at(ops, place, leave_out_rows(op, fewer, rows))
                yield smaller, changed
                yield config, changed


def list_simpler_caches(
    caches: Sequence[Mapping[str, Any]],
) -> Iterator[list[Mapping[str, Any]]]:
    """Lists caches of a wrapper with one fewer, a plain one, or one of lower sizes."""
    for place, cache in enumerate(caches):
        if len(caches) > 1:
            yield replace_at(caches, place)
        if cache != {"kind": "causal"}:
            yield replace_at(caches, place, {"kind": "causal"})
        for name, size in cache.items():
            if isinstance(size, int):
                for less in list_steps(size - 1):
                    yield replace_at(caches, place, {**cache, name: size - less})


def leave_out_rows(op: Op, begin: int, end: int) -> Op:
    """Returns the pass without the rows [begin, end)."""
    shorter = dict(op)
    for name in ("positions", "sequences"):
        shorter[name] = [*op[name][:begin], *op[name][end:]]
    for name in ("except", "multimodal"):
        kept = [row for row in op[name] if not begin <= row < end]
        shorter[name] = [row - (end - begin) * (row >= end) for row in kept]
    return shorter


def lower(op: Op, owner: int | None, position: int, less: int = 1) -> Op:
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
        positions = [get_lower(at) if owner in (None, own) else at for at, own in rows]
        if len(positions) < len(op["positions"]):
            return op
        return {**op, "positions": positions}
    if owner not in (None, op.get("sequence", op.get("source"))):
        return op
    return {**op, **{name: get_lower(op[name]) for name in PLACES if name in op}}


def list_owners(ops: Sequence[Op]) -> set[int]:
    return {name for op in ops for name in list_names(op, OPERATIONS, "sequence")}
