"""Choices where no Hypothesis runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lockstep.harness.contracts.operation import Source, T


class RandomSource(Source):
    """Choices from Python's own generator."""

    def __init__(self, number: int) -> None:
        self.random = Random(number).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def pick(self, options: Sequence[T]) -> T:
        """Picks an option as any source does, but in one call."""
        return options[int(self.random() * len(options))]


def draw_some(count: int, number: int, draw: Callable[[Source], T]) -> list[T]:
    """Draws several programs, one after the other, from the seed `number`."""
    source = RandomSource(number)
    return [draw(source) for _ in range(count)]
