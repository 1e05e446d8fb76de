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
        requests: without end: the first half of each in turn, and as many other tokens.
    """

    def __init__(self, count: int, length: int) -> None:
        random = np.random.default_rng(count)
        self.stored: list[list[int]] = [
            random.integers(0, VOCABULARY, length).tolist() for _ in range(count)
        ]
        half = length // 2
        others = random.integers(VOCABULARY, 2 * VOCABULARY, (count, half)).tolist()
        pairs = zip(self.stored, others, strict=True)
        self.requests: Iterator[list[int]] = cycle(
            [[*stored[:half], *other] for stored, other in pairs]
        )
