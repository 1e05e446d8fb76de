"""The sliding window: a query sees the last `window` tokens, including itself."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Captures, Snapshot
from .token import Token


class RotatingCache:
    """Sliding-window attention over one sequence.

    An implementation keeps a ring of the last tokens. This cache keeps every token since
    the last `free`, and a snapshot contains all these tokens; `visible` selects the
    window by position. tokens[p] is the token at position p.

    Args:
        window: number of tokens that a query sees, including itself.
        keep: number of tokens at the beginning of the sequence that never slide out
            (attention sinks); the other window - keep tokens are the latest.
        record: whether a trim can bring back tokens that slid out.
    """

    def __init__(self, window: int, keep: int = 0, record: bool = False) -> None:
        self.window = window
        self.keep = keep
        self.record = record
        self.tokens: list[Token] = []
        self.captures = Captures()

    @property
    def offset(self) -> int:
        """The number of tokens written, minus the number of tokens trimmed."""
        return self.tokens[-1].position + 1 if self.tokens else 0

    def size(self) -> int:
        return min(self.offset, self.window)

    def update(self, tags: Sequence[int]) -> None:
        """Appends one token for each tag."""
        self.captures.reach(self.offset, self.capture)
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
            self.captures.reach(self.offset, self.capture)

    def visible(self, query: int) -> list[Token]:
        """Returns the tokens that the query at position `query` may attend to."""
        end = query + 1
        return self.tokens[: min(self.keep, end)] + self.tokens[self.first(query) : end]

    def first(self, query: int) -> int:
        """Returns the first position behind the sinks that a query may attend to."""
        return max(self.keep, query + 1 - (self.window - self.keep))

    def state(self) -> list[Token]:
        """Returns the window that ends at the last token."""
        return self.visible(self.offset - 1)

    def older(self) -> list[Token]:
        """Returns the tokens before the window.

        An implementation may return some of these tokens besides `state`: their contents
        are correct, although no later query sees them.
        """
        return self.tokens[self.keep : self.first(self.offset - 1)]

    def may_rewind(self) -> bool:
        """Returns whether the cache can go back to an earlier offset.

        After a token has slid out, an earlier window needs tokens that an implementation
        has overwritten, unless it records them.
        """
        return self.record or self.offset <= self.window

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer.

        Returns:
            The number of removed tokens; 0 if the cache cannot go back; see `may_rewind`.
        """
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        if not self.may_rewind():
            return 0
        trimmed = min(count, self.offset)
        self.keep_below(self.offset - trimmed)
        return trimmed

    def keep_below(self, end: int) -> None:
        del self.tokens[end:]

    def clone(self) -> RotatingCache:
        """Returns an independent cache with the same tokens and no scheduled captures."""
        copy = RotatingCache(self.window, self.keep, self.record)
        copy.tokens = list(self.tokens)
        return copy

    def free(self) -> None:
        """Resets the cache. Earlier snapshots stay valid."""
        self.tokens = []
        self.captures.clear()

    def snapshot(self, begin: int) -> Snapshot | None:
        """Returns a snapshot of the whole window, with the label [begin, offset).

        Returns:
            None if the cache is empty or `begin` is not below the offset.
        """
        return self.capture(max(0, begin)) if begin < self.offset else None

    def capture(self, begin: int) -> Snapshot | None:
        """Returns a snapshot of the whole window, with the label [begin, offset).

        Unlike in `snapshot`, the label may be empty.

        Returns:
            None if the cache is empty.
        """
        if not self.tokens:
            return None
        return Snapshot(begin, self.offset, tuple(self.tokens))

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        if snapshot is None:
            rewinds = 0 <= target < self.offset and self.may_rewind()
            return target == self.offset or rewinds
        short = 0 <= target < snapshot.end <= self.window
        return target == snapshot.end or short

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the content. None to keep the present offset, or to go back
                to an earlier offset if `may_rewind` allows it.
            target: the new offset. It may be before the end of the snapshot only if the
                end is not beyond `window`: then no token had slid out.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.tokens = list(snapshot.tokens)
        self.keep_below(target)
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Returns None and the whole snapshot: a window cannot be cut."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Returns the later snapshot, which contains its whole window."""
        return child

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules a capture at each offset; see `Captures`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        return self.captures.take()
