"""Small worlds of programs: few operations, so that all short programs over them can be
run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lockstep.harness.contracts.operation import Op

SIZES = ("tiny", "small", "standard")
"""From fewest operations to most."""

Renaming = Callable[[Op], Op]
"""Exchanges two names in an operation."""


@dataclass(frozen=True)
class Domain:
    """The small world that a contract proposes for one kind.

    config: for some fields, the values in the order in which they are preferred. moves:
    operations; fields that follow from what was done before are missing, and the contract
    fills them in. renamings: exchanges of names that mean the same.
    """

    config: Mapping[str, Sequence[Any]]
    moves: Sequence[Op]
    renamings: Sequence[Renaming] = ()


def join(*parts: Sequence[Op]) -> tuple[Op, ...]:
    return tuple(chain.from_iterable(parts))
