"""The work of an engine on a batch of requests, on each framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.workloads import Make

Pair = tuple[Any, Any]

ROWS = 32
SHORTER = 16
"""In uneven rows, row b holds b % SHORTER tokens less than row 0."""

DROPPED = {"first": 0, "middle": ROWS // 2, "last": ROWS - 1}


def list_lengths(rows: int, tokens: int, uneven: bool) -> list[int]:
    return [tokens - row % SHORTER * uneven for row in range(rows)]


class BatchSide(ABC):
    """The work of our batches, and of what they are compared with.

    Attributes:
        batched: Makes a batch of ours: rows, window, step.
        batch_peers: A module with released batched caches; None if there are none.
    """

    batched: Callable[..., Any]
    batch_peers: Any

    @abstractmethod
    def make(self, length: int, rows: int = 1) -> Pair:
        """Makes K and V of `length` tokens."""

    @abstractmethod
    def repeat(self, array: Any, rows: int) -> Any:
        """Returns a view of the array as that of so many rows."""

    @abstractmethod
    def own(self, batch: Any) -> Any:
        """Returns a batch of ours whose clone is written to memory."""

    @abstractmethod
    def finish(self, arrays: Any) -> object: ...

    @abstractmethod
    def run(self, make: Callable[[], Any]) -> Callable[[], object]: ...

    @abstractmethod
    def limit_clone(self, pair: Pair) -> Contender: ...

    def ask_batch_peers(self, work: str, *arguments: Any) -> Make:
        return getattr(self.batch_peers, work)(*arguments) if self.batch_peers else []

    def open_batch(
        self, old: Pair, lengths: list[int], window: int | None, room: int
    ) -> Any:
        """Returns a batch of ours with prompts of these lengths, and a token more if it
        has a window, which has turned then. old: K and V of one prompt, of all rows."""
        batch = self.batched(len(lengths), window, room)
        batch.pad_right(lengths)
        self.finish(batch.update(*(self.repeat(array, len(lengths)) for array in old)))
        batch.finalize()
        if window:
            token = (self.repeat(array[:, :, :1], len(lengths)) for array in old)
            self.finish(batch.update(*token))
        return batch

    def batch_step(self, tokens: int, window: int | None, uneven: bool) -> Make:
        """A mask, and a token for each row."""
        old, new = self.make(tokens), self.make(1, ROWS)
        lengths = list_lengths(ROWS, tokens, uneven)
        batch = self.open_batch(old, lengths, window, tokens + STEPS)
        wraps = window is not None

        def back() -> None:
            if not wraps:
                batch.trim(max(batch.lengths) - tokens)

        def work() -> None:
            mask = batch.make_mask(1)
            self.finish([*batch.update(*new), *([] if mask is None else [mask])])

        peers = self.ask_batch_peers("batch_step", old, new, lengths, window)
        return [Contender("ours", "ours", work, back), *peers]

    def batch_mask(self, tokens: int, window: int | None) -> Make:
        """The mask of a step of uneven rows."""
        old = self.make(tokens)
        lengths = list_lengths(ROWS, tokens, True)
        batch = self.open_batch(old, lengths, window, tokens + 1)
        work = self.run(lambda: batch.make_mask(1))
        peers = self.ask_batch_peers("batch_mask", old, lengths, window)
        return [Contender("ours", "ours", work), *peers]

    def batch_filter(self, tokens: int, window: int | None, dropped: str) -> Make:
        """One of the rows leaves."""
        old = self.make(tokens)
        lengths = [tokens] * ROWS
        kept = self.open_batch(old, lengths, window, tokens + 1)
        rows = [row for row in range(ROWS) if row != DROPPED[dropped]]
        batches: list[Any] = []

        def work() -> None:
            batches[0].filter(rows)
            self.finish(batches[0].list_arrays())

        def start() -> None:
            batches[:] = [self.own(kept)]

        peers = self.ask_batch_peers("batch_filter", old, lengths, window, rows)
        return [Contender("ours", "ours", work, start, most=1), *peers]

    def batch_extend(self, tokens: int, window: int | None, room: bool) -> Make:
        """A row joins; room: another one has left before."""
        old = self.make(tokens)
        lengths = [tokens] * (ROWS - 1 + room)
        kept = self.open_batch(old, lengths, window, tokens + 1)
        one = self.open_batch(old, [tokens], window, tokens + 1)
        batches: list[Any] = []

        def work() -> None:
            batches[0].extend(batches[1])
            self.finish(batches[0].list_arrays())

        def start() -> None:
            if room:
                batches[:] = [self.own(kept), self.own(one)]
                batches[0].filter([*range(ROWS - 1)])
            else:  # new arrays replace these, as with peers, and none is freed
                batches[:] = [kept.clone(), one.clone()]

        peers = self.ask_batch_peers("batch_extend", old, lengths[: ROWS - 1], window)
        limit = self.limit_clone(old)
        return [Contender("ours", "ours", work, start, most=1), *peers, limit]

    def batch_extract(self, tokens: int, window: int | None) -> Make:
        """A row goes on alone, by a token."""
        old, token = self.make(tokens), self.make(1)
        lengths = [tokens] * ROWS
        batch = self.open_batch(old, lengths, window, tokens + 1)
        work = lambda: self.finish(batch.extract(5).update(*token))  # noqa: E731
        peers = self.ask_batch_peers("batch_extract", old, token, lengths, window)
        return [Contender("ours", "ours", work), *peers, self.limit_clone(old)]
