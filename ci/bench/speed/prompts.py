"""Prompts that a prefix cache has stored, and requests that repeat a half of one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

VOCABULARY = 50_000


class Prompts:
    """Random prompts.

    Attributes:
        stored: `count` prompts of `length` tokens.
        requests: without end: the first half of each in turn, and as many other tokens,
            the first of which no other request has.
    """

    def __init__(self, count: int, length: int) -> None:
        random = np.random.default_rng(count)
        self.stored: list[list[int]] = [
            random.integers(0, VOCABULARY, length).tolist() for _ in range(count)
        ]
        half = length // 2
        others = random.integers(0, VOCABULARY, half).tolist()
        self.requests: Iterator[list[int]] = (
            [*stored[:half], VOCABULARY + number, *others[1:]]
            for number, stored in enumerate(cycle(self.stored))
        )
