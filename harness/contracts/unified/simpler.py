"""What makes a unified program simpler: fewer rows, lower positions, fewer sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.contracts.base import Op

OWNERS = ("sequence", "source", "target")


def merge_passes(first: Op, second: Op) -> Op | None:
    """Two passes in a row are one, if nothing is special about either."""
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
    """One row fewer, alone or with all later positions of its sequence one lower; a
    sequence called 0; all positions of a sequence one lower."""
    for place, op in enumerate(ops):
        if op["op"] != "forward" or len(op["positions"]) != len(op["sequences"]):
            continue
        for row in range(len(op["positions"])):
            shorter = [leave_out_row(op, row)] if len(op["positions"]) > 1 else []
            owner, position = op["sequences"][row], op["positions"][row]
            later = [
                lower(each, owner, position) for each in [*shorter, *ops[place + 1 :]]
            ]
            yield [*ops[:place], *later]
            yield [*ops[:place], *shorter, *ops[place + 1 :]]
    for owner in sorted(list_owners(ops)):
        if owner > 0:
            yield [rename_owner(op, {owner: 0, 0: owner}) for op in ops]
            yield [rename_owner(op, {owner: 0}) for op in ops]
        yield [lower(op, owner, 0) for op in ops]


Changed = tuple[Mapping[str, Any], Sequence[Op]]


def simplify_config(config: Mapping[str, Any], ops: Sequence[Op]) -> Iterator[Changed]:
    """The same room from fewer numbers: capacity for padding, capacity for sequences;
    and less room, with as many rows fewer to fill it."""
    count, capacity = config["sequences"], config["capacity"]
    room = -(-count * capacity // config["cache_padding"]) * config["cache_padding"]
    if config["cache_padding"] > 1:
        for share in (room // count, -(-room // count)):
            yield {**config, "cache_padding": 1, "capacity": share}, ops
    used = max(list_owners(ops), default=0) + 1
    if used < count:
        yield {**config, "sequences": used, "capacity": -(-room // used)}, ops
        yield {**config, "sequences": used, "capacity": room // used}, ops
    if capacity == 1:
        return
    smaller = {**config, "capacity": capacity - 1}
    for place, op in enumerate(ops):
        if op["op"] != "forward" or len(op["positions"]) != len(op["sequences"]):
            continue
        rows = len(op["positions"])
        for fewer in {rows - count, rows // 2}:
            if 0 < fewer < rows:
                shorter = op
                for row in range(rows - 1, fewer - 1, -1):
                    shorter = leave_out_row(shorter, row)
                changed = [*ops[:place], shorter, *ops[place + 1 :]]
                yield smaller, changed
                yield config, changed


def leave_out_row(op: Op, row: int) -> Op:
    shorter = dict(op)
    for name in ("positions", "sequences"):
        shorter[name] = [*op[name][:row], *op[name][row + 1 :]]
    for name in ("except", "multimodal"):
        shorter[name] = [each - (each > row) for each in op[name] if each != row]
    return shorter


def lower(op: Op, owner: int, position: int) -> Op:
    """The operation with every position of the sequence that lies behind `position` one
    lower."""

    def get_lower(value: int | None) -> int | None:
        return value - 1 if value is not None and value > position else value

    if op["op"] == "forward":
        rows = zip(op["positions"], op["sequences"], strict=False)
        positions = [get_lower(at) if own == owner else at for at, own in rows]
        if len(positions) < len(op["positions"]):
            return op
        return {**op, "positions": positions}
    names = ("begin", "end", "position", "length")
    if op.get("sequence", op.get("source")) != owner:
        return op
    return {**op, **{name: get_lower(op[name]) for name in names if name in op}}


def list_owners(ops: Sequence[Op]) -> set[int]:
    owners = {op[name] for op in ops for name in OWNERS if name in op}
    for op in ops:
        owners |= set(op.get("sequences", ()))
    return owners


def rename_owner(op: Op, names: dict[int, int]) -> Op:
    renamed = {**op}
    for name in OWNERS:
        if name in op:
            renamed[name] = names.get(op[name], op[name])
    if "sequences" in op:
        renamed["sequences"] = [names.get(each, each) for each in op["sequences"]]
    return renamed


def rename(ops: Sequence[Op]) -> list[Op]:
    """Saved contents called s0, s1, … in the order of their appearance."""
    names: dict[str, str] = {}
    renamed: list[Op] = []
    for op in ops:
        field = {"save": "into", "load": "from"}.get(op["op"])
        if field is not None:
            names.setdefault(op[field], f"s{len(names)}")
            op = {**op, field: names[op[field]]}
        renamed.append(op)
    return renamed
