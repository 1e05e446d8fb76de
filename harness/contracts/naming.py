"""Names in operations: of caches, snapshots, sequences, users.

A field holds a name, or a list of names, if its schema says of what sort
(`core.fields.NAMES`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from lockstep.harness.contracts.types import Op
from lockstep.harness.core.document import NAMES, Schema


class Named(Hashable, Protocol):
    """The part of an operation that is needed here."""

    @property
    def fields(self) -> Mapping[str, Schema]: ...


Operations = Mapping[str, Named]


@cache
def list_fields(operation: Named, sort: str) -> Sequence[str]:
    """Lists the fields that hold names of a sort; those with a default come first."""
    named = [name for name, schema in operation.fields.items() if is_of(schema, sort)]
    return sorted(named, key=lambda name: "default" not in operation.fields[name])


def is_of(schema: Schema, sort: str) -> bool:
    return bool(schema.get(NAMES) == sort)


def list_names(op: Op, operations: Operations, sort: str) -> list[Any]:
    """Lists the names of a sort in an operation, in order."""
    values = [op.get(field) for field in list_fields(operations[op["op"]], sort)]
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [name for names in lists for name in names if name is not None]


def rename(op: Op, operations: Operations, sort: str, names: Mapping[Any, Any]) -> Op:
    """Returns the operation with other names of a sort; unknown names stay."""
    renamed = dict(op)
    for field in list_fields(operations[op["op"]], sort):
        if field in op:
            value = op[field]
            renamed[field] = (
                [names.get(name, name) for name in value]
                if isinstance(value, list)
                else names.get(value, value)
            )
    return renamed


def number_names(
    ops: Sequence[Op], operations: Operations, letters: Mapping[str, Callable[[int], str]]
) -> list[Op]:
    """Renames everything in the order of its appearance.

    Args:
        ops: the operations of a program.
        operations: all operations, by name.
        letters: for each sort, what the first is called, the second, and so on. A default
            is there from the start and keeps its name.
    """
    renamed = list(ops)
    for sort, letter in letters.items():
        defaults = [
            operation.fields[field].get("default")
            for operation in operations.values()
            for field in list_fields(operation, sort)
        ]
        names = {name: name for name in defaults if name is not None}
        for op in ops:
            for name in list_names(op, operations, sort):
                names.setdefault(name, letter(len(names)))
        if names:
            renamed = [rename(op, operations, sort, names) for op in renamed]
    return renamed
