"""Plans the columns of a cache that keeps every token: position p is in column p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

Run = tuple[int, int, int]
"""Consecutive tokens: the number of the first, and their columns [begin, end)."""


Plan = tuple[Any, Sequence[Run] | None, Sequence[Run], Sequence[Run]]
"""The plan of an update: (columns, copied, written, returned), which are integers only.

columns: the planner after the update.
copied: the columns of the present buffers with which new buffers begin; None if the
    present buffers stay.
written: the tokens of the update, numbered from 0, with their target columns; a token may
    have two targets.
returned: the columns that the update returns.
A plan is a plain tuple, because every step makes a plan.
"""


def compute_capacity(capacity: int, needed: int, step: int) -> int:
    """Returns a larger capacity for buffers that are too small.

    The capacity at least doubles, so that each token is copied a constant number of times
    on average.

    Args:
        capacity: the present capacity, in positions.
        needed: the number of positions that must fit.
        step: if twice the capacity is not enough, `needed` is rounded up to a multiple of
            this number.
    """
    return max(2 * capacity, -(-needed // step) * step)


@dataclass(frozen=True)
class Linear:
    """The planner of a full cache.

    Attributes:
        step: see `compute_capacity`.
        room: number of columns.
    """

    step: int
    room: int = 0

    @property
    def capacity(self) -> int:
        """The number of positions that fit into the buffers."""
        return self.room

    def plan(self, first: int, begin: int, end: int) -> Plan:
        """Plans an update that writes [begin, end) and returns all positions [0, end).

        `first` is always 0. The positions before `begin` keep their content.
        """
        written, returned = ((0, begin, end),), ((first, first, end),)
        if end <= self.room:
            return self, None, written, returned
        columns = replace(self, room=compute_capacity(self.room, end, self.step))
        copied = ((first, first, begin),) if begin > first else ()
        return columns, copied, written, returned

    def find(self, begin: int, end: int) -> Sequence[Run]:
        """Returns the columns of the positions [begin, end)."""
        return ((begin, begin, end),)

    def destroys(self, low: int, high: int, first: int, begin: int, end: int) -> bool:
        """Returns whether an update writes to positions of [low, high); for other
        arguments see `plan`."""
        return low < end and begin < high

    def count_with_spare(self, tokens: int) -> int:
        """Returns the number of positions for `tokens` tokens and one more token."""
        return tokens + 1

    def take_block(
        self, position: int, column: int, tokens: int, room: int
    ) -> Linear | None:
        """Returns the planner for existing buffers that already hold the tokens.

        Returns None if the buffers are too large or too small, or if the tokens are in
        other columns.

        Args:
            position, column: position and column of the first token.
            tokens: number of tokens.
            room: number of columns of the buffers.
        """
        fits = column == 0 and tokens < room <= 2 * tokens
        return replace(self, room=room) if fits else None

    def clear(self) -> Linear:
        """Returns the planner for an empty cache without buffers."""
        return replace(self, room=0)
