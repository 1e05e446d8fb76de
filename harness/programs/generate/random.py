"""Programs from a seeded generator of random numbers: no search, no overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lockstep.harness.contracts.types import Source, T
from lockstep.harness.programs.program import Program


class RandomSource(Source):
    """Choices from Python's own generator."""

    def __init__(self, number: int) -> None:
        self.random = Random(number).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def pick(self, options: Sequence[T]) -> T:
        """The same as any source does, in one call."""
        return options[int(self.random() * len(options))]


def generate(
    count: int,
    number: int,
    draw: Callable[[Source], Program],
    consume: Callable[[Program], None],
) -> None:
    """Hands `count` programs to `consume`. number: the seed."""
    source = RandomSource(number)
    for _ in range(count):
        consume(draw(source))
