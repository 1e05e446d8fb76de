"""Workloads on a batch of requests, for all frameworks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.subjects import Batch, Pair
from ci.bench.speed.workloads import Contenders

ROWS = 32
SHORTER = 16
"""In uneven rows, row b holds b % SHORTER tokens less than row 0."""

DROPPED = {"first": 0, "middle": ROWS // 2, "last": ROWS - 1}


class OurBatch(Batch):
    """Our batch, as a contender.

    Attributes:
        own: returns a clone of a batch, after the arrays of the clone are computed.
    """

    role = "ours"

    def __init__(self, cache: Any, finish: Callable[[Any], object], own: Any) -> None:
        super().__init__("ours", cache)
        self.finish, self.own = finish, own

    def step(self, keys: Any, values: Any) -> object:
        mask = self.cache.make_mask(1)
        made = [] if mask is None else [mask]
        return self.finish([*self.cache.update(keys, values), *made])

    def mask(self) -> object:
        return self.finish(self.cache.make_mask(1))

    def rewind(self, tokens: int) -> None:
        self.cache.trim(max(self.cache.lengths) - tokens)

    def make_filter(self, rows: list[int]) -> Callable[[], object]:
        def work() -> object:
            self.cache.filter(rows)
            return self.finish(self.cache.list_arrays())

        return work

    def start_again(self) -> Callable[[], object]:
        whole = self.cache
        return lambda: setattr(self, "cache", self.own(whole))

    def extract(self, row: int, token: Pair) -> object:
        return self.finish(self.cache.extract(row).update(*token))


class BatchWorks:
    """The workloads of our batches and of third-party batches.

    Subclasses define

    * `make(length, rows=1)`: K and V of `length` tokens;
    * `repeat(array, rows)`: a view of the array in which its row is repeated;
    * `own(batch)`: a clone of our batch, whose arrays are computed;
    * `open_batch_peers(old, lengths, window)`: third-party batches with prompts of these
      lengths, and one more token if they have a window; the last batch can grow;
    * `limit_clone(pair)`: copies into fresh memory.

    Attributes:
        batched: makes our batch; its arguments are rows, window and step.
    """

    batched: Callable[..., Any]

    def finish(self, arrays: Any) -> object:
        """Returns arrays after a lazy framework has computed them."""
        return arrays

    def open_batch(
        self, old: Pair, lengths: list[int], window: int | None, room: int
    ) -> OurBatch:
        """Returns our batch with prompts of the given lengths.

        If the batch has a window, each row gets one more token, so that the ring wraps.

        Args:
            old: K and V of one prompt, which all rows use.
            lengths: the number of tokens of each row.
            window: the window of the batch, or None.
            room: the number of columns to allocate.
        """
        batch = self.batched(len(lengths), window, room)
        batch.pad_right(lengths)
        self.finish(batch.update(*(self.repeat(array, len(lengths)) for array in old)))
        batch.finalize()
        if window:
            token = (self.repeat(array[:, :, :1], len(lengths)) for array in old)
            self.finish(batch.update(*token))
        return OurBatch(batch, self.finish, self.own)

    def batch_step(self, tokens: int, window: int | None, uneven: bool) -> Contenders:
        """Measures a step: making a mask, and appending a token to each row."""
        old, new = self.make(tokens), self.make(1, ROWS)
        lengths = [tokens - row % SHORTER * uneven for row in range(ROWS)]
        ours = self.open_batch(old, lengths, window, tokens + STEPS)
        batches = [ours, *self.open_batch_peers(old, lengths, window)]
        start = (lambda _: None) if window else (lambda batch: batch.rewind(tokens))
        return [
            batch.contend(
                *(batch.step, *new), start=partial(start, batch), most=batch.most
            )
            for batch in batches
        ]

    def batch_mask(self, tokens: int, window: int | None) -> Contenders:
        """Measures making the mask of a step, for rows of uneven lengths."""
        old = self.make(tokens)
        lengths = [tokens - row % SHORTER for row in range(ROWS)]
        ours = self.open_batch(old, lengths, window, tokens + 1)
        batches = [ours, *self.open_batch_peers(old, lengths, window)[-1:]]
        return [batch.contend(batch.mask) for batch in batches]

    def batch_filter(self, tokens: int, window: int | None, dropped: str) -> Contenders:
        """Measures the removal of a row."""
        old, lengths = self.make(tokens), [tokens] * ROWS
        ours = self.open_batch(old, lengths, window, tokens + 1)
        rows = [row for row in range(ROWS) if row != DROPPED[dropped]]
        batches = [ours, *self.open_batch_peers(old, lengths, window)[-1:]]
        return [
            batch.contend(batch.make_filter(rows), start=batch.start_again(), most=1)
            for batch in batches
        ]

    def batch_extend(self, tokens: int, window: int | None, room: bool) -> Contenders:
        """Measures adding a row. If `room` is true, another row has been removed
        before."""
        old, lengths = self.make(tokens), [tokens] * (ROWS - 1)
        rows = lengths + [tokens] * room
        whole = self.open_batch(old, rows, window, tokens + 1).cache
        row = self.open_batch(old, [tokens], window, tokens + 1).cache
        batches: list[Any] = []

        def work() -> None:
            batches[0].extend(batches[1])
            self.finish(batches[0].list_arrays())

        def start() -> None:
            if room:
                batches[:] = [self.own(whole), self.own(row)]
                batches[0].filter([*range(ROWS - 1)])
            else:  # as with peers, new arrays replace these, and no row was removed
                batches[:] = [whole.clone(), row.clone()]

        contenders = [Contender("ours", "ours", work, start, most=1)]
        peers = self.open_batch_peers(old, lengths, window)[-1:]
        joining = self.open_batch_peers(old, lengths[:1], window)[-1:]
        for peer, single in zip(peers, joining, strict=True):
            if peer.can_join:
                join = peer.extend, single.cache
                contenders.append(peer.contend(*join, start=peer.start_again(), most=1))
        return [*contenders, self.limit_clone(old)]

    def batch_extract(self, tokens: int, window: int | None) -> Contenders:
        """Measures extracting a row and appending a token to it."""
        old, token, lengths = self.make(tokens), self.make(1), [tokens] * ROWS
        ours = self.open_batch(old, lengths, window, tokens + 1)
        peers = self.open_batch_peers(old, lengths, window)[-1:]
        batches = [ours, *(peer for peer in peers if peer.can_join)]
        contenders = [batch.contend(batch.extract, 5, token) for batch in batches]
        return [*contenders, self.limit_clone(old)]
