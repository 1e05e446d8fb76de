"""Workloads on a pool of cells, for all frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ci.bench.speed.workloads import SEQUENCES, VISIBLE
from lockstep.impl.shared.causal import CausalCacheBase, Sizes

Open = Callable[[Sizes], Any]
Feed = Callable[[int], tuple[Any, Any]]
"""Returns K and V of the given number of tokens."""

FILL = 8192
"""The number of rows of a pass while a pool is filled."""


def open_filled(cache: CausalCacheBase, before: int, rows: int) -> None:
    """Stores `before` tokens of sequence 0; opens a pass with the next `rows` tokens."""
    for begin, end in ((0, before), (before, before + rows)):
        if begin < end:
            cache.forward(range(begin, end), [0] * (end - begin))


class Decoding:
    """A decoding step: each of SEQUENCES sequences gets one token.

    Queries see a window of VISIBLE tokens, but all tokens are kept. If `full` is true,
    all cells are used except the cells for the new tokens. Otherwise, the pool holds the
    visible tokens and no others. The visible tokens are in contiguous cells, whatever the
    size of the pool.
    """

    def __init__(self, cells: int, full: bool, open_cache: Open, feed: Feed) -> None:
        capacity = cells // SEQUENCES
        self.most = min(32, capacity - VISIBLE)
        # A memory as large as the capacity keeps everything.
        sizes = Sizes(SEQUENCES, capacity, FILL, window=VISIBLE - 1, memory=capacity)
        self.cache, self.ends = open_cache(sizes), [0] * SEQUENCES
        filled = capacity - self.most if full else VISIBLE
        while self.ends[0] < filled - VISIBLE:
            self.forward(min(FILL // SEQUENCES, filled - VISIBLE - self.ends[0]))
        while self.ends[0] < filled:
            self.forward(1)
        self.filled, self.new = filled, feed(SEQUENCES)
        self.start()
        self.step()

    def forward(self, length: int) -> None:
        self.cache.forward(*self.list_next(length))

    def list_next(self, length: int) -> tuple[list[int], list[int]]:
        """Returns positions and sequences of the next tokens of all sequences."""
        span, owners = range(length), range(SEQUENCES)
        positions = [end + token for end in self.ends for token in span]
        sequences = [owner for owner in owners for _ in span]
        self.ends = [end + length for end in self.ends]
        return positions, sequences

    def step(self) -> Any:
        """Runs one step: makes the calls that a model with one layer makes for each
        token."""
        self.cache.forward(*next(self.steps))
        self.cache.put(0, *self.new)
        return self.cache.get(0)

    def start(self) -> None:
        """Removes all tokens that were added after the pool was filled, and prepares the
        next steps.

        The tokens of the next steps are listed here, because this is the task of the
        caller of a cache.
        """
        for owner in range(SEQUENCES):
            self.cache.remove(owner, self.filled, None)
        self.cache.cells.settle()  # completes deferred work, which is not part of a step
        self.ends = [self.filled] * SEQUENCES
        self.steps = iter([self.list_next(1) for _ in range(self.most)])

    def get_form(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns of the mask."""
        rows, width = self.cache.get(0)[2].shape
        return rows, width


class Sharing:
    """A sequence copies a prefix of `tokens` tokens from another, and gets one more
    token."""

    def __init__(self, tokens: int, open_cache: Open, feed: Feed) -> None:
        self.tokens, self.new = tokens, feed(1)
        self.cache = open_cache(Sizes(2, tokens + 1, tokens))
        open_filled(self.cache, 0, tokens)
        self.cache.put(0, *feed(tokens))

    def work(self) -> Any:
        self.cache.copy_prefix(0, 1, self.tokens)
        self.cache.forward([self.tokens], [1])
        self.cache.put(0, *self.new)
        return self.cache.get(0)


class Removing:
    """The removal of tokens from a sequence.

    If `where` is "tail", `tokens` tokens are removed from the end. Otherwise, one token
    is removed from the middle, and the `tokens` tokens after it move to lower positions.
    """

    def __init__(self, tokens: int, where: str, open_cache: Open, feed: Feed) -> None:
        self.tail = where == "tail"
        self.most = 1 if self.tail else 16
        self.tokens, self.length = tokens, 2 * tokens
        self.cache = open_cache(Sizes(1, self.length, self.length))
        open_filled(self.cache, 0, self.length)
        self.cache.put(0, *feed(self.length))
        self.left = self.length

    def start(self) -> None:
        if self.left < self.length:
            added = range(self.left, self.length)
            self.cache.forward(added, [0] * len(added))
        self.left = self.length

    def work(self) -> None:
        if self.tail:
            self.left = self.length - self.tokens
            self.cache.remove(0, self.left, None)
            return
        self.left -= 1
        begin = self.left - self.tokens
        self.cache.remove(0, begin, begin + 1)
