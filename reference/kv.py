"""The full cache, which keeps every token; a query sees all tokens up to itself."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Captures, Snapshot
from .token import Token


class KVCache:
    """Full attention over one sequence. tokens[p] is the token at position p.

    Args:
        chunk: for chunked attention, where a query sees only tokens of its own chunk of
            positions (chunk 4: positions 0-3, 4-7, …); None for no limit.
    """

    def __init__(self, chunk: int | None = None) -> None:
        self.chunk = chunk
        self.tokens: list[Token] = []
        self.captures = Captures()

    @property
    def offset(self) -> int:
        """The number of tokens written, minus the number of tokens trimmed."""
        return len(self.tokens)

    def size(self) -> int:
        return self.offset

    def update(self, tags: Sequence[int]) -> None:
        """Appends one token for each tag."""
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
            self.captures.reach(self.offset, self.snapshot)

    def visible(self, query: int) -> list[Token]:
        """Returns the tokens that the query at position `query` may attend to."""
        first = 0 if self.chunk is None else query - query % self.chunk
        return self.tokens[first : query + 1]

    def state(self) -> list[Token]:
        """Returns all tokens: the positions [0, offset)."""
        return list(self.tokens)

    def older(self) -> list[Token]:
        """Returns the tokens that an implementation may return besides `state`: none."""
        return []

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer.

        Returns:
            The number of removed tokens.
        """
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        trimmed = min(count, self.offset)
        self.keep_below(self.offset - trimmed)
        return trimmed

    def keep_below(self, end: int) -> None:
        del self.tokens[end:]

    def clone(self) -> KVCache:
        """Returns an independent cache with the same tokens and no scheduled captures."""
        copy = KVCache(self.chunk)
        copy.tokens = list(self.tokens)
        return copy

    def free(self) -> None:
        """Resets the cache. Earlier snapshots stay valid."""
        self.tokens = []
        self.captures.clear()

    def snapshot(self, begin: int) -> Snapshot | None:
        """Returns the tokens at [begin, offset); None if there are none."""
        begin = max(0, begin)
        if self.offset <= begin:
            return None
        return Snapshot(begin, self.offset, tuple(self.tokens[begin:]))

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        if snapshot is None:
            return 0 <= target <= self.offset
        return 0 <= target <= snapshot.end and self.offset >= snapshot.begin

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: a snapshot of positions [a, b). The cache keeps its tokens before a;
                the snapshot supplies the tokens from a on. None to go back to an earlier
                offset.
            target: the new offset.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.keep_below(snapshot.begin)
            self.tokens += snapshot.tokens
        self.keep_below(target)
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Cuts a snapshot of [a, b) into snapshots of [a, at) and [at, b).

        An empty snapshot is None.
        """
        if at <= snapshot.begin:
            return None, snapshot
        if at >= snapshot.end:
            return snapshot, None
        first = tuple(token for token in snapshot.tokens if token.position < at)
        last = tuple(token for token in snapshot.tokens if token.position >= at)
        return Snapshot(snapshot.begin, at, first), Snapshot(at, snapshot.end, last)

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins snapshots of [a, b) and [b, c) into a snapshot of [a, c).

        Returns:
            None if either snapshot is None.
        """
        if parent is None or child is None:
            return None
        if parent.end != child.begin:
            raise ValueError(
                f"merge: [{parent.begin}, {parent.end}) and [{child.begin}, {child.end})"
                " are not adjacent"
            )
        return Snapshot(parent.begin, child.end, parent.tokens + child.tokens)

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules a capture at each offset; see `Captures`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        return self.captures.take()
