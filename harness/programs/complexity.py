"""Which of two programs is simpler for a person."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lockstep.harness.core.document import DERIVED, drop_defaults
from lockstep.harness.programs.program import Program


class Rank(NamedTuple):
    """The complexity of a program, the most important number first.

    Of two programs that show one bug, the one with the lower rank is better.

    Attributes:
        numbers: the sum of the numbers in operations, plus one for each item of a list.
        names: caches, snapshots and users that operations name, and sequences.
        narrow: the dtype is not float32.
        fields: fields of the config that are not at their default.
        sizes: the sum of the numbers in these fields, and of numbers that follow from
            them, such as limits in bytes.
    """

    operations: int
    tokens: int
    numbers: int
    names: int
    layers: int
    heads: int
    narrow: bool
    fields: int
    sizes: int


def get_rank(program: Program) -> Rank:
    """The rank of a program; it does not depend on the names in it."""
    config, rules = program.config, program.rules
    numbers = derived = 0
    names: set[str] = set()
    for op in rules.rename(program.ops):
        schemas = rules.operations[op["op"]].fields
        for name, value in drop_defaults(op, schemas).items():
            if DERIVED in schemas[name]:
                derived += count_numbers(value)
            else:
                numbers += count_numbers(value)
                names |= set(list_names(value))
    own = drop_defaults(config, rules.config)
    return Rank(
        operations=len(program.ops),
        tokens=program.count_tokens(),
        numbers=numbers,
        names=len(names) + config.get("sequences", 1),
        layers=rules.count_layers(config) + len(config.get("caches", ())),
        heads=config["heads"],
        narrow=config["dtype"] != "float32",
        fields=len(own),
        sizes=derived + sum(map(count_numbers, own.values())),
    )


def count_numbers(value: Any) -> int:
    """The sum of the numbers in a value, those in text too, and one for each item."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(count_numbers, value))
    if isinstance(value, str):
        return sum(map(int, re.findall(r":([0-9]+)", value)))
    return abs(int(value or 0))


def list_names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))
