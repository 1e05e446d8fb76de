"""Makes the contenders for each workload, for a framework, dtype and number of heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ci.bench.speed.batches import BatchWorks
from ci.bench.speed.measure import STEPS, Contender
from ci.bench.speed.pools import Decoding, Removing, Sharing
from ci.bench.speed.subjects import Ours, Pair
from ci.bench.speed.workloads import SMALL_POOL, SMALLEST, Contenders
from lockstep.impl.prefix.trie import Trie

VOCABULARY = 50_000


class Prompts:
    """Random prompts, and requests that repeat the first half of a prompt.

    Attributes:
        stored: `count` prompts, each of `length` tokens.
        request: the request that was drawn last.
    """

    def __init__(self, count: int, length: int) -> None:
        random = np.random.default_rng(count)
        self.stored: list[list[int]] = random.integers(
            VOCABULARY, size=(count, length)
        ).tolist()
        self.others = random.integers(0, VOCABULARY, length // 2).tolist()
        self.numbers = enumerate(cycle(self.stored), VOCABULARY)
        self.request: list[int] = []

    def draw(self) -> None:
        """Draws a request.

        Its first half is the first half of the next stored prompt. Its second half has
        other tokens, and begins with a token that no other request has.
        """
        token, stored = next(self.numbers)
        half = len(self.others)
        self.request = [*stored[:half], token, *self.others[1:]]


class Works(BatchWorks):
    """The workloads of our caches and of third-party caches.

    The workloads are the same on each framework. In addition to the methods that
    `BatchWorks` needs, subclasses define

    * `open(sizes)`: returns a pool of cells of these sizes;
    * `open_peers(window=None, room=0)`: returns third-party caches; the last cache can
      grow, and can be copied and trimmed;
    * `wait()`: waits for the device;
    * `mask(rows, width, form)`: contenders for a causal mask [rows, width] of the last
      rows of a context of `width` tokens; `form` is bool, or additive in the dtype;
    * `unified_mask(rows, width)`: contenders for an additive mask from a table of cells;

    and contenders that measure the framework without a cache:

    * `limit_writes(new, room, most)`: writes K and V to allocated memory, as far
      apart as a cache does: numbers that were written last are still in the processor's
      cache, and are faster to write;
    * `limit_decode(cells, rows, width)`: makes a mask, and writes rows into a pool, each
      time into different cells of the last `width`;
    * `limit_free(cells)`: marks half of the cells as free in a table of cells;
    * `limit_copy(keys)`: copies into allocated memory, if the framework can.

    Attributes:
        kv: makes our cache without a window.
        rotating: makes our cache with a window.
    """

    kv: Callable[[], Any]
    rotating: Callable[..., Any]

    def finish_cache(self, cache: Any) -> object:
        """Returns the cache after a lazy framework has computed its content."""
        return cache

    def run(self, make: Callable[[], Any]) -> Callable[[], object]:
        """Returns work that makes and computes arrays, and then drops them."""
        return lambda: self.finish(make())

    def open_ours(self, cache: Any = None, name: str = "ours") -> Ours:
        return Ours(cache or self.kv(), self.finish, self.finish_cache, name)

    def extend(self, context: int, length: int) -> Contenders:
        """Measures appending `length` tokens to `context` tokens, without a window."""
        old, new = self.make(context), self.make(length)
        most = STEPS if length == 1 else 4
        room = context + most * length
        subjects = [self.open_ours(), *self.open_peers(room=room)]
        for subject in subjects:
            subject.update(*old)
            subject.update(*self.make(room - context))  # grows it to its final size
        return [
            *(
                subject.contend(
                    *(subject.update, *new),
                    start=partial(subject.rewind, old),
                    most=min(most, subject.most),
                )
                for subject in subjects
            ),
            *self.limit_writes(new, room, most),
        ]

    def slide(self, window: int, wrapped: bool, length: int) -> Contenders:
        """Measures updates of a cache that keeps the last `window` tokens.

        Before the updates, the tokens fill a quarter of the window; if `wrapped` is true,
        they have filled the ring twice.
        """
        context = 2 * window if wrapped else window // 4
        old, new = self.make(context), self.make(length)
        most = STEPS if wrapped else min(STEPS, (window - context) // length)
        ours = [self.open_ours(self.rotating(window, twin=True))]
        if wrapped:
            alone = self.rotating(window, twin=False)
            ours.append(self.open_ours(alone, "without a twin"))
        contenders = []
        for subject in (*ours, *self.open_peers(window)):
            subject.fill(old)
            start = (lambda: None) if wrapped else partial(subject.rewind, old)
            held = {"count_bytes": subject.count_bytes} if subject in ours else {}  # type: ignore[attr-defined]
            more = {"start": start, "most": most, **held}
            contenders.append(subject.contend(subject.update, *new, **more))
        most = min(most, 2 * window // length)
        return [*contenders, *self.limit_writes(new, 2 * window, most)]

    def decode(self, cells: int, full: bool) -> Contenders:
        """Measures a decoding step: making the mask, and adding one token to each of
        SEQUENCES.

        The step runs in a pool of `cells` cells. For comparison, it also runs in a pool
        of SMALLEST cells, in which the queries see as many tokens.
        """
        ours, small = (
            Decoding(size, full, self.open, self.make) for size in (cells, SMALLEST)
        )
        most = min(ours.most, small.most)
        return [
            Contender("ours", "ours", self.run(ours.step), ours.start, most),
            Contender(SMALL_POOL, "also", self.run(small.step), small.start, most),
            self.limit_decode(cells, *ours.get_form()),
        ]

    def share(self, tokens: int) -> Contenders:
        """Measures the time to share a prefix of `tokens` tokens and append one token to
        it."""
        ours = Sharing(tokens, self.open, self.make)
        self.finish(ours.work())
        old, new = self.make(tokens), self.make(1)
        contenders = [Contender("ours", "ours", self.run(ours.work))]
        for peer in self.open_peers()[-1:]:
            peer.update(*old)
            contenders.append(peer.contend(peer.copy_and_update, new))
        return [*contenders, self.limit_clone(old)]

    def trim(self, tokens: int) -> Contenders:
        """Measures trimming `tokens` tokens from the end of a cache of one sequence."""
        whole = self.make(2 * tokens)
        subjects = [self.open_ours(), *self.open_peers()[-1:]]
        for subject in subjects:
            subject.update(*whole)
        return [
            subject.contend(
                subject.trim, tokens, start=partial(subject.refill, whole), most=1
            )
            for subject in subjects
        ]

    def remove(self, tokens: int, where: str) -> Contenders:
        """Measures the removal of tokens from a sequence in a pool.

        If `where` is "tail", `tokens` tokens are removed from the end. Otherwise, one
        token is removed from the middle; the `tokens` tokens after it move to lower
        positions, and their keys are rotated.

        No third-party cache is compared: the caches of mlx-lm and transformers, like our
        caches of one sequence, can trim all sequences together (`trim`), but cannot free
        the cells of a single sequence.
        """
        ours = Removing(tokens, where, self.open, self.make)

        def work() -> None:
            ours.work()
            self.finish((ours.cache.keys, ours.cache.values))

        contender = Contender("ours", "ours", work, ours.start, ours.most)
        if where == "tail":
            return [contender, self.limit_free(tokens)]
        return [contender, self.limit_copy(self.make(tokens)[0])]

    def keep(self, tokens: int, touched: bool) -> Contenders:
        """Measures saving the content of a cache and restoring it.

        Args:
            tokens: the number of tokens of the cache.
            touched: whether a saved token is overwritten between saving and restoring.
        """
        old, token = self.make(tokens), self.make(1)
        subjects = [self.open_ours(), *self.open_peers()[-1:]]
        for subject in subjects:
            subject.update(*old)
        contenders = [one.contend(one.keep, token, touched) for one in subjects]
        return [*contenders, self.limit_clone(old)]

    def begin(self, prompts: int, tokens: int) -> Contenders:
        """Measures the beginning of a request that repeats half of a stored prompt.

        The request gets K and V of this half, and of one more token, because a cache may
        delay the copy until the next update. An earlier request has already repeated the
        same half. Storing the tokens of the request at its end is not measured, because
        third-party caches leave this to the caller.

        Args:
            prompts: the number of stored prompts.
            tokens: the number of tokens of each stored prompt.
        """
        drawn, layer, token = Prompts(prompts, tokens), self.kv(), self.make(1)
        trie = Trie([layer])
        for stored in drawn.stored:
            trie.begin(stored)
            self.finish(layer.update(*self.make(tokens)))
            trie.close()

        def work() -> None:
            trie.begin(drawn.request)
            self.finish(layer.update(*token))

        def start() -> None:
            if trie.request is not None:
                trie.cancel()
            drawn.draw()

        for _ in drawn.stored:
            start()
            work()
        return [
            Contender("ours", "ours", work, start, most=1),
            *self.begin_peers(Prompts(prompts, tokens), self.make(tokens), token),
            self.limit_clone(self.make(tokens // 2)),
        ]

    def begin_peers(self, prompts: Prompts, pair: Pair, token: Pair) -> Contenders:
        """Returns third-party caches that reuse prompts, as contenders.

        Args:
            prompts: the stored prompts and the requests.
            pair: K and V of a stored prompt, the same for all stored prompts.
            token: K and V of one token.
        """
        return []
