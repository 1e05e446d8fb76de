"""One framework: the contenders for each piece of work, in one dtype and form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from ci.bench.speed.batches import BatchSide
from ci.bench.speed.measure import STEPS, Contender, Role
from ci.bench.speed.prompts import Prompts
from ci.bench.speed.unified import Decoding, Removing, Sharing
from ci.bench.speed.workloads import SMALL_POOL, SMALLEST, Make
from lockstep.impl.prefix.trie import Trie

Pair = tuple[Any, Any]
"""K and V."""


class Side(BatchSide):
    """The work of our caches, which is the same on each framework, and what it is
    compared with.

    Attributes:
        kv: Makes a full cache of ours.
        rotating: Makes one with a window.
        open: Makes a pool of cells of some sizes.
        peers: A module with released caches of the framework; None if there are none.
    """

    kv: Callable[[], Any]
    rotating: Callable[..., Any]
    peers: Any

    @abstractmethod
    def open(self, sizes: Any) -> Any: ...

    @abstractmethod
    def wait(self) -> object:
        """Waits for the device."""

    @abstractmethod
    def make(self, length: int, rows: int = 1) -> Pair:
        """Makes K and V of `length` tokens."""

    def finish(self, arrays: Any) -> object:
        """Returns arrays once a lazy framework has computed them."""
        return arrays

    def finish_cache(self, cache: Any) -> object:
        """Returns a cache once a lazy framework has computed all that it holds."""
        return cache

    def run(self, make: Callable[[], Any]) -> Callable[[], object]:
        """Returns work that makes arrays, which nobody holds afterwards."""
        return lambda: self.finish(make())

    def ask_peers(self, work: str, *arguments: Any) -> Make:
        return getattr(self.peers, work)(*arguments) if self.peers else []

    def extend(self, context: int, length: int) -> Make:
        """`length` tokens more behind `context` tokens that all stay."""
        old, new = self.make(context), self.make(length)
        most = STEPS if length == 1 else 4
        room, ours = context + most * length, self.kv()
        for pair in (old, self.make(room - context)):  # it grows as far as it will
            self.finish(ours.update(*pair))

        def back() -> None:
            ours.trim(ours.offset - context)

        work = self.run(lambda: ours.update(*new))
        return [
            Contender("ours", "ours", work, back, most),
            *self.ask_peers("extend", old, new, most),
            *self.limit_writes(new, room, most),
        ]

    def slide(self, window: int, wrapped: bool, length: int) -> Make:
        """The same where the last `window` tokens stay, which fill a quarter of it or
        have gone round it twice."""
        context = 2 * window if wrapped else window // 4
        old, new = self.make(context), self.make(length)
        most = STEPS if wrapped else min(STEPS, (window - context) // length)

        def make_ours(name: str, role: Role, twin: bool) -> Contender:
            ours = self.rotating(window, twin=twin)
            for part in (slice(context - 1), slice(context - 1, None)):
                self.finish(ours.update(*(array[:, :, part] for array in old)))

            def back() -> None:
                if not wrapped:
                    ours.trim(ours.offset - context)

            def count_bytes() -> int:
                return int(ours.held()["bytes"])

            work = self.run(lambda: ours.update(*new))
            return Contender(name, role, work, back, most, count_bytes)

        return [
            make_ours("ours", "ours", True),
            *([make_ours("without a twin", "also", False)] if wrapped else []),
            *self.ask_peers("slide", old, new, window, most),
            *self.limit_writes(new, 2 * window, min(most, 2 * window // length)),
        ]

    def decode(self, cells: int, full: bool) -> Make:
        """A token for each of SEQUENCES sequences in one pool of cells, the mask
        included; beside that in a pool of SMALLEST, which sees as many."""
        ours, small = (
            Decoding(size, full, self.open, self.make) for size in (cells, SMALLEST)
        )
        most = min(ours.most, small.most)
        return [
            Contender("ours", "ours", self.run(ours.step), ours.start, most),
            Contender(SMALL_POOL, "also", self.run(small.step), small.start, most),
            self.limit_decode(cells, *ours.get_form()),
        ]

    def share(self, tokens: int) -> Make:
        """Another sequence, or cache, with the same first tokens, gets one of its own."""
        ours = Sharing(tokens, self.open, self.make)
        self.finish(ours.work())
        old, new = self.make(tokens), self.make(1)
        return [
            Contender("ours", "ours", self.run(ours.work)),
            *self.ask_peers("share", old, new),
            self.limit_clone(old),
        ]

    def trim(self, tokens: int) -> Make:
        """`tokens` tokens leave the end of a cache of one sequence."""
        ours = self.kv()
        self.finish(ours.update(*self.make(2 * tokens)))
        arrays = ours.memory.list_arrays()

        def work() -> None:
            ours.trim(tokens)
            self.finish(arrays)

        def start() -> None:
            ours.offset = 2 * tokens  # they are still there

        contender = Contender("ours", "ours", work, start, most=1)
        return [contender, *self.ask_peers("trim", self.make(2 * tokens), tokens)]

    def remove(self, tokens: int, where: str) -> Make:
        """One of the sequences of a pool loses `tokens` tokens at its end; or one token
        from the middle, and as many behind it move up, their keys turned.

        There is no released cache beside it. What those of mlx-lm and transformers can
        do is shorten all that they hold, by a subtraction or a view, as our caches of one
        sequence do: that is `trim`. They cannot free the cells of one sequence of many.
        """
        ours = Removing(tokens, where, self.open, self.make)

        def work() -> None:
            ours.work()
            self.finish((ours.cache.keys, ours.cache.values))

        contender = Contender("ours", "ours", work, ours.start, ours.most)
        if where == "tail":
            return [contender, self.limit_free(tokens)]
        return [contender, self.limit_copy(self.make(tokens)[0])]

    def keep(self, tokens: int, touched: bool) -> Make:
        """Puts the content aside and brings it back; touched: a token was written in
        between, over one that was put aside."""
        old, token, ours = self.make(tokens), self.make(1), self.kv()
        self.finish(ours.update(*old))

        def work() -> None:
            snapshot = ours.snapshot(0)
            assert snapshot is not None
            if touched:
                ours.trim(1)
                self.finish(ours.update(*token))
            ours.restore(snapshot, tokens)
            ours.close(snapshot)
            self.finish_cache(ours)

        return [
            Contender("ours", "ours", work),
            *self.ask_peers("keep", old, token, touched),
            self.limit_clone(old),
        ]

    def attend_paged(self, requests: int, tokens: int) -> Make:
        """A token for each request, attention over its table of blocks included."""
        raise NotImplementedError

    def begin(self, prompts: int, tokens: int) -> Make:
        """A request that repeats half of a stored prompt of `tokens` tokens gets K and V
        of that half, and of one more token: a copy may be put off until then. It is not
        the first request that repeats this half. That what it computed is stored when it
        ends, which released caches leave to the caller, is not timed."""
        given, layer, token = Prompts(prompts, tokens), self.kv(), self.make(1)
        trie = Trie([layer])
        for stored in given.stored:
            trie.begin(stored)
            self.finish(layer.update(*self.make(tokens)))
            trie.close()

        def work() -> None:
            trie.begin(given.request)
            self.finish(layer.update(*token))

        def start() -> None:
            if trie.request is not None:
                trie.cancel()
            given.draw()

        for _ in given.stored:
            start()
            work()

        return [
            Contender("ours", "ours", work, start, most=1),
            *self.ask_peers("begin", Prompts(prompts, tokens), self.make(tokens), token),
            self.limit_clone(self.make(tokens // 2)),
        ]

    @abstractmethod
    def mask(self, rows: int, width: int, form: str) -> Make:
        """[rows, width], causal, the last rows of a context of `width`; form: bool, or
        additive in the dtype."""

    @abstractmethod
    def unified_mask(self, rows: int, width: int) -> Make:
        """The same from a table of cells, additive."""

    # --- what the framework takes without a cache ---------------------------------------

    @abstractmethod
    def limit_writes(self, new: Pair, room: int, most: int) -> Make:
        """K and V go to memory that is there: as far apart as that of a cache, or what is
        written last would still be at hand."""

    @abstractmethod
    def limit_decode(self, cells: int, rows: int, width: int) -> Contender:
        """Writes rows into a pool, each time into others of the last `width` cells, and a
        mask."""

    @abstractmethod
    def limit_clone(self, pair: Pair) -> Contender:
        """Copies into fresh memory."""

    @abstractmethod
    def limit_free(self, cells: int) -> Contender:
        """Writes to a table of cells that half of them are free."""

    @abstractmethod
    def limit_copy(self, keys: Any) -> Contender:
        """Copies into memory that is there, if the framework can."""
