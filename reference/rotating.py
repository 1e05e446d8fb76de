"""The sliding window: a query sees the last `window` tokens, itself included."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Captures, Snapshot
from .token import Token


class RotatingCache:
    """Sliding-window attention over one sequence.

    An implementation keeps a ring of the last tokens. Here every token stays in the list
    since the last free or restore, and the window is a rule about positions.

    window: how many tokens a query sees, itself included.
    keep: how many of those are the first tokens of the sequence, which never slide out
    (attention sinks); the other window - keep are the latest ones.
    """

    def __init__(self, window: int, keep: int = 0) -> None:
        self.window = window
        self.keep = keep
        self.tokens: list[Token] = []
        self.captures = Captures()

    @property
    def offset(self) -> int:
        """How many tokens were written, less those that were taken back."""
        return self.tokens[-1].position + 1 if self.tokens else 0

    def size(self) -> int:
        return min(self.offset, self.window)

    def update(self, tags: Sequence[int]) -> None:
        """Appends one token for each tag."""
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
            self.captures.reach(self.offset, self.snapshot)

    def visible(self, query: int) -> list[Token]:
        """What the query at position `query` may attend to."""
        latest = self.window - self.keep
        return [
            token
            for token in self.tokens
            if token.position <= query
            and (token.position > query - latest or token.position < self.keep)
        ]

    def state(self) -> list[Token]:
        """The window that ends at the last token."""
        return self.visible(self.offset - 1)

    def older(self) -> list[Token]:
        """Tokens before the window. An implementation may still hand some of them out
        along with the window: they are true, though of no use to the next query."""
        window = set(self.state())
        return [token for token in self.tokens if token not in window]

    def may_rewind(self) -> bool:
        """Nothing has slid out yet. Later, an earlier window would need tokens that an
        implementation has long overwritten."""
        return self.offset <= self.window

    def trim(self, count: int) -> int:
        """Takes back the last `count` tokens and says how many; 0 if it may not."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        if not self.may_rewind():
            return 0
        trimmed = min(count, self.offset)
        self.keep_below(self.offset - trimmed)
        return trimmed

    def keep_below(self, end: int) -> None:
        self.tokens = [token for token in self.tokens if token.position < end]

    def clone(self) -> RotatingCache:
        """An independent cache with the same tokens; a schedule stays behind."""
        copy = RotatingCache(self.window, self.keep)
        copy.tokens = list(self.tokens)
        return copy

    def free(self) -> None:
        """Back to a fresh cache. Snapshots taken before live on."""
        self.tokens = []
        self.captures.clear()

    def snapshot(self, begin: int) -> Snapshot | None:
        """The whole window; `begin` only decides whether there is anything new, and
        labels it."""
        begin = max(0, begin)
        if self.offset <= begin:
            return None
        return Snapshot(begin, self.offset, tuple(self.state()))

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Whether `restore` would do it, and not refuse."""
        if snapshot is None:
            rewinds = 0 <= target < self.offset and self.may_rewind()
            return target == self.offset or rewinds
        short = 0 <= target < snapshot.end <= self.window
        return target == snapshot.end or short

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`, or refuses and changes nothing.

        Without a snapshot: to where it stands, or back while nothing has slid out. With
        one: the snapshot replaces everything; stopping short of its end needs a snapshot
        from which nothing had slid out.
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
        """A window cannot be cut: all of it stays on the right."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """The later window has all that is needed."""
        return child

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures; see `Captures`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        return self.captures.take()
