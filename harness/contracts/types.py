"""The types that every contract and everything below it shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

Op = Mapping[str, Any]
"""One operation of a program: {"op": name, field: value, …}, every field set."""

Answer = dict[str, Any]
"""The answer to an operation, in the form of a trace: {"offset": 3, "visible": […]}."""

MIXED = "key of"
"""Begins the words for a column with the key of one token and the value of another."""

Cell = tuple[str, str]
"""(abstract state, operation that finds it). What is counted of a run."""

T = TypeVar("T")


class Place(NamedTuple):
    """A token that the reference has, and where.

    sequences: whose it is; none where there is one only. is_old: a backend need not have
    it any more.
    """

    tag: int
    position: int
    sequences: tuple[int, ...] = ()
    is_old: bool = False


Held = tuple[str, Sequence[Place]]
"""A cache, or a part of one, in words, and what the reference holds in it."""


class Unreachable(NamedTuple):
    """Cells that no program can reach, and why.

    Of `states`, no other operations than `only` can find them (None: all can), and none
    of `never`.
    """

    why: str
    states: Collection[str]
    only: Collection[str] | None = None
    never: Collection[str] = ()

    def holds(self, cell: Cell) -> bool:
        state, operation = cell
        if state not in self.states:
            return False
        out = self.only is not None and operation not in self.only
        return out or operation in self.never


class Source(ABC):
    """The source of all choices of a generator."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """An integer in [0, limit), limit ≥ 1; 0 is the simplest."""

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)


class Simplest(Source):
    """Always the simplest choice."""

    def below(self, limit: int) -> int:
        return 0
