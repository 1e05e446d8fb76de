"""A source of random choices that does not use Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lockstep.harness.contracts.operation import Source, T


class RandomSource(Source):
    """A source whose choices come from Python's `random.Random`."""

    def __init__(self, number: int) -> None:
        self.random = Random(number).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def pick(self, options: Sequence[T]) -> T:
        """Picks an option like `Source.pick`, but with a single call of `random`."""
        return options[int(self.random() * len(options))]


def draw_some(count: int, number: int, draw: Callable[[Source], T]) -> list[T]:
    """Draws `count` programs from a single source with the seed `number`."""
    source = RandomSource(number)
    return [draw(source) for _ in range(count)]
