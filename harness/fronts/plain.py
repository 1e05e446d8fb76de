"""Programs from a seeded generator of random numbers: no search, no overhead."""

from __future__ import annotations

from random import Random

from harness.contracts.base import Source


class RandomSource(Source):
    """Choices from Python's own generator."""

    def __init__(self, seed: str | int) -> None:
        self.random = Random(seed)

    def below(self, limit: int) -> int:
        return int(self.random.random() * limit)
