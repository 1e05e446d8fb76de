"""Where the choices of a generator come from."""

from __future__ import annotations

from collections.abc import Sequence
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

    def branch(self) -> RandomSource:
        return RandomSource(self.below(1 << 24))


class ChoiceSource(Source):
    """Choices of Hypothesis, each drawn and shrunk by itself."""

    def __init__(self, random: Random) -> None:
        self.randrange = random.randrange

    def below(self, limit: int) -> int:
        return self.randrange(limit) if limit > 1 else 0
