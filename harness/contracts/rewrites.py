"""Rewrites for shrinking that all contracts share; each yields simpler programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import Any, TypeVar

from lockstep.harness.contracts.operation import (
    Config,
    Op,
    Operations,
    list_names,
    rename,
)
from lockstep.harness.core.document import MAX_LENGTH

T = TypeVar("T")

Rewrite = Callable[[Sequence[Op]], Iterator[list[Op]]]
"""A function that yields simpler versions of a program, each changed by one step."""

Changed = tuple[Config, Sequence[Op]]
"""A simpler config with its operations."""


def name_letter(number: int) -> str:
    """Returns a, b, c, … for 0, 1, 2, …"""
    return chr(ord("a") + number)


def merge_updates(first: Op, second: Op) -> Op | None:
    """Merges two consecutive updates of one cache, if the second has no padding."""
    updates = first["op"] == second["op"] == "update"
    if not updates or first["cache"] != second["cache"] or second.get("left"):
        return None
    length = first["length"] + second["length"]
    return {**first, "length": length} if length <= MAX_LENGTH else None


def replace_at(items: Sequence[T], index: int, *new: T) -> list[T]:
    """Returns the items with the item at `index` replaced by any number of new items."""
    return [*items[:index], *new, *items[index + 1 :]]


def list_steps(most: int) -> list[int]:
    """Lists the amounts by which to lower a number, largest first.

    The amounts are `most`, half of `most`, then a quarter of the previous amount, and so
    on down to 1.
    """
    shares = takewhile(bool, (most // 2 >> shift for shift in count(0, 2)))
    return list(dict.fromkeys([most, *shares, 1])) if most > 0 else []


def find(ops: Sequence[Op], *names: str) -> Iterator[tuple[int, Op]]:
    """Yields the index and the operation for each operation with one of these names."""
    return ((index, op) for index, op in enumerate(ops) if op["op"] in names)


def simplify_each(list_simpler: Callable[[Op], Iterator[Op]]) -> Rewrite:
    """Makes the rewrite that replaces one operation by a simpler operation."""

    def rewrite(ops: Sequence[Op]) -> Iterator[list[Op]]:
        for index, op in enumerate(ops):
            for simpler in list_simpler(op):
                yield replace_at(ops, index, simpler)

    return rewrite


def join_names(operations: Operations, sort: str, *present: str) -> Rewrite:
    """Makes the rewrite that replaces all uses of one name by an earlier name.

    Args:
        operations: the contract's operations, by name.
        sort: the sort of names.
        present: the names that exist at the start of a program.
    """

    def rewrite(ops: Sequence[Op]) -> Iterator[list[Op]]:
        named = {name for op in ops for name in list_names(op, operations, sort)}
        names = sorted(named.union(present))
        for index, name in enumerate(names):
            for earlier in names[:index]:
                yield [rename(op, operations, sort, {name: earlier}) for op in ops]

    return rewrite


def list_lower(fields: Mapping[str, Any], minimums: Mapping[str, int]) -> Iterator[Any]:
    """Yields the fields with one number lowered, but not below its minimum."""
    for name, least in minimums.items():
        for less in list_steps(fields.get(name, least) - least):
            yield {**fields, name: fields[name] - less}


def list_simpler_parts(
    members: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]
) -> Iterator[list[Mapping[str, Any]]]:
    """Yields the configs of the member caches, simplified: one member made plain, or one
    size removed or lowered.

    Args:
        members: the configs of the member caches of a combined cache.
        plain: the simplest member config.
    """
    for index, member in enumerate(members):
        if member != plain:
            yield replace_at(members, index, plain)
        for name in [name for name in member if name != "kind"]:
            sizes_left = {key: member[key] for key in member if key != name}
            yield replace_at(members, index, sizes_left)
        sizes = {name: 1 for name, size in member.items() if isinstance(size, int)}
        for lower in list_lower(member, sizes):
            yield replace_at(members, index, lower)
