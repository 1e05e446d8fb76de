"""Steps of shrinking that contracts have in common: each proposes simpler programs."""

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

T = TypeVar("T")

Rewrite = Callable[[Sequence[Op]], Iterator[list[Op]]]
"""Proposes operations that are simpler by one step."""

Changed = tuple[Config, Sequence[Op]]
"""A config and operations."""


def replace_at(items: Sequence[T], index: int, *new: T) -> list[T]:
    """Returns the items with new ones, or none, in the place of one."""
    return [*items[:index], *new, *items[index + 1 :]]


def list_steps(most: int) -> list[int]:
    """Lists how much lower a number may get that can be `most` lower, most first: by all
    of it, by half, a quarter of that and so on, and by one."""
    shares = takewhile(bool, (most // 2 >> shift for shift in count(0, 2)))
    return list(dict.fromkeys([most, *shares, 1])) if most > 0 else []


def find(ops: Sequence[Op], *names: str) -> Iterator[tuple[int, Op]]:
    """Iterates over the operations with one of these names, and where they stand."""
    return ((index, op) for index, op in enumerate(ops) if op["op"] in names)


def simplify_each(list_simpler: Callable[[Op], Iterator[Op]]) -> Rewrite:
    """Makes the rewrite that puts a simpler operation in the place of one."""

    def rewrite(ops: Sequence[Op]) -> Iterator[list[Op]]:
        for index, op in enumerate(ops):
            for simpler in list_simpler(op):
                yield replace_at(ops, index, simpler)

    return rewrite


def join_names(operations: Operations, sort: str, *present: str) -> Rewrite:
    """Makes the rewrite that lets one name stand for another as well.

    Args:
        operations: all of the contract, by name.
        sort: of names.
        present: names that are there from the start.
    """

    def rewrite(ops: Sequence[Op]) -> Iterator[list[Op]]:
        named = {name for op in ops for name in list_names(op, operations, sort)}
        names = sorted(named.union(present))
        for index, name in enumerate(names):
            for earlier in names[:index]:
                yield [rename(op, operations, sort, {name: earlier}) for op in ops]

    return rewrite


def list_lower(fields: Mapping[str, Any], minimums: Mapping[str, int]) -> Iterator[Any]:
    """Proposes fields of which one number is lower, but not below its minimum."""
    for name, least in minimums.items():
        for less in list_steps(fields.get(name, least) - least):
            yield {**fields, name: fields[name] - less}


def list_simpler_parts(
    members: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]
) -> Iterator[list[Mapping[str, Any]]]:
    """Proposes caches below of which one is plain, or has a lower size."""
    for index, member in enumerate(members):
        if member != plain:
            yield replace_at(members, index, plain)
        sizes = {name: 1 for name, size in member.items() if isinstance(size, int)}
        for lower in list_lower(member, sizes):
            yield replace_at(members, index, lower)
