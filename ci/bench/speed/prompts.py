"""Prompts that a prefix cache has stored, and requests that repeat a half of one."""

from __future__ import annotations

from itertools import cycle

import numpy as np

VOCABULARY = 50_000


class Prompts:
    """Random prompts.

    Attributes:
        stored: `count` prompts of `length` tokens.
        request: the one that was drawn last.
    """

    def __init__(self, count: int, length: int) -> None:
        random = np.random.default_rng(count)
        self.stored: list[list[int]] = [
            random.integers(0, VOCABULARY, length).tolist() for _ in range(count)
        ]
        self.others = random.integers(0, VOCABULARY, length // 2).tolist()
        self.numbers = enumerate(cycle(self.stored), VOCABULARY)
        self.request: list[int] = []

    def draw(self) -> None:
        """Draws a request: the first half of the next stored prompt, and as many other
        tokens, the first of which no other request has."""
        token, stored = next(self.numbers)
        half = len(self.others)
        self.request = [*stored[:half], token, *self.others[1:]]
