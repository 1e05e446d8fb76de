"""The oracle: what a cache that keeps the rules of `reference/trie.py` reuses.

It is compared with that reference itself, on random requests and on a small day, in
`tests/project/test_prefix_bench.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ci.bench.prefixes.conversations import (
    Conversations,
    Kind,
    Path,
    count_common,
    encode,
)
from ci.bench.prefixes.day import Tokens


class Simulation:
    """The rules of `reference/trie.py` on tokens alone, fast enough for a day."""

    def __init__(
        self, kinds: Sequence[Kind], limit: int | None = None, interval: int | None = None
    ) -> None:
        self.kinds, self.limit, self.interval = kinds, limit, interval
        self.whole = [n for n, kind in enumerate(kinds) if not kind.can_be_cut]
        self.stored = Conversations(kinds)
        self.request: Path | None = None
        self.live: Path = b""
        self.offsets = [0] * len(kinds)

    # --- a request ----------------------------------------------------------------------

    def begin(
        self, tokens: Sequence[int] | Tokens, checkpoints: Collection[int] = ()
    ) -> int:
        """How many tokens of the request need not be computed."""
        self.request = request = encode(tokens)
        matched = self.stored.count_matched(request)
        self.reused = self.compute_reuse(request, min(matched, len(tokens) - 1))
        self.wanted = set(checkpoints)
        if 0 < matched < len(tokens):
            self.wanted.add(matched)
        self.live = request[: 4 * self.reused]
        self.stored.touch(self.live)
        self.offsets = [self.reused] * len(self.kinds)
        return self.reused

    def compute_reuse(self, request: Path, most: int) -> int:
        """The longest beginning that all layers can be brought to. Where all can is where
        all were captured, or one of them stands, or the live conversation ends."""
        if not self.whole:
            return most
        live = min(most, count_common(request, self.live))
        reach = {min(live, offset) for offset in self.offsets}
        best = max((p for p in reach if self.can_reach(request, p, live)), default=0)
        path = request[: 4 * most]
        path = path if path in self.stored.marks else self.stored.get_parent(path)
        while len(path) > 4 * best and not self.can_reach(request, len(path) // 4, live):
            path = self.stored.get_parent(path)
        return max(best, len(path) // 4)

    def can_reach(self, request: Path, length: int, live: int) -> bool:
        mark = self.stored.marks.get(request[: 4 * length])
        captured = mark.captured if mark else ()
        return all(
            number in captured or (length <= live and self.can_go_back(number, length))
            for number in self.whole
        )

    def can_go_back(self, number: int, target: int) -> bool:
        """Whether the layer itself can, from where it stands."""
        offset, window = self.offsets[number], self.kinds[number].window
        rewinds = window is not None and target < offset <= window
        return target == offset or rewinds

    def extend(self, tokens: Sequence[int] | Tokens) -> None:
        assert self.request is not None
        before = len(self.request) // 4
        self.request += encode(tokens)
        matched = self.stored.count_matched(self.request)
        if before <= matched < len(self.request) // 4:
            self.wanted.add(matched)

    def feed(self, end: int, layers: int | None = None) -> None:
        """The layers, or the first of them, have read the request up to `end`."""
        for number in range(len(self.kinds))[:layers]:
            self.offsets[number] = max(end, self.offsets[number])

    def close(self) -> int:
        assert self.request is not None
        reached = min(self.offsets)
        self.live, self.request = self.request[: 4 * reached], None
        if reached:
            self.store(self.live, reached)
        self.keep_limit()
        return reached

    def store(self, path: Path, length: int) -> None:
        if parting := self.stored.count_matched(path):
            self.stored.add(path[: 4 * parting])
        ends = self.wanted | {length}
        if self.interval is not None:
            ends |= set(range(self.interval, length, self.interval))
        for end in sorted(end for end in ends if max(1, self.reused) <= end <= length):
            mark = self.stored.add(path[: 4 * end])
            periodic = self.interval is not None and end % self.interval == 0
            for number in self.whole:
                passed = end in self.wanted or periodic
                if number not in mark.captured and (
                    passed or self.offsets[number] == length
                ):
                    self.stored.capture(path[: 4 * end], number)
            self.stored.touch(path[: 4 * end])

    def count_bytes(self) -> int:
        return self.stored.count_bytes()

    # --- the limit ----------------------------------------------------------------------

    def set_limit(self, limit: int | None) -> None:
        self.limit = limit
        self.keep_limit()

    def keep_limit(self) -> None:
        kept = set()
        while self.limit is not None and self.count_bytes() > self.limit:
            path = self.stored.pop()
            if path is None:
                break
            if self.is_protected(path):
                kept.add(path)
            else:
                self.stored.evict(path)
        for path in kept:
            self.stored.queue_up(path)

    def is_protected(self, path: Path) -> bool:
        """Whether what the layers hold runs along its last part, however far."""
        parent = len(self.stored.get_parent(path)) // 4
        return count_common(self.get_live(), path) > parent

    def get_live(self) -> Path:
        tokens = self.live if self.request is None else self.request
        return tokens[: 4 * min(self.offsets)]

    def count_protected(self) -> int:
        """The bytes of all that is protected."""
        live, stored = self.get_live(), self.stored
        path = stored.get_first(live[: 4 * stored.count_matched(live)]) or b""
        total = len(path) // 4 * stored.token_bytes
        while path:
            total += stored.count_captured(path)
            path = stored.get_parent(path)
        return total
