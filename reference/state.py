"""The recurrent state: a sum over all tokens so far, from which no single token can be
removed."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Captures, Snapshot
from .token import Token


class StateCache:
    """The state of a linear-recurrent layer over one sequence.

    An implementation keeps two arrays of fixed size, the inputs of a short convolution
    and a running state. Each is a function of all tokens in order. This list keeps the
    tokens themselves: two states are equal if they come from the same tokens.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.captures = Captures()

    @property
    def offset(self) -> int:
        """Number of tokens that the state has read."""
        return len(self.tokens)

    def update(self, tags: Sequence[int]) -> None:
        """Reads one token for each tag."""
        self.captures.reach(self.offset, self.capture)
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
            self.captures.reach(self.offset, self.capture)

    def visible(self, query: int) -> list[Token]:
        """Returns the tokens that the state at position `query` has read."""
        return self.tokens[: query + 1]

    def state(self) -> list[Token]:
        """Returns all tokens that the state has read, in order."""
        return list(self.tokens)

    def older(self) -> list[Token]:
        """Returns the tokens that an implementation may return besides `state`: none."""
        return []

    def trim(self, count: int) -> int:
        """Returns 0: a state cannot lose a token."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        return 0

    def clone(self) -> StateCache:
        """Returns an independent cache with the same state and no scheduled captures."""
        copy = StateCache()
        copy.tokens = list(self.tokens)
        return copy

    def free(self) -> None:
        """Resets the cache. Earlier snapshots stay valid."""
        self.tokens = []
        self.captures.clear()

    def snapshot(self, begin: int) -> Snapshot | None:
        """Returns a snapshot of the whole state, with the label [begin, offset).

        Returns:
            None if the cache is empty or `begin` is not below the offset.
        """
        return self.capture(max(0, begin)) if begin < self.offset else None

    def capture(self, begin: int) -> Snapshot | None:
        """Returns a snapshot of the whole state, with the label [begin, offset).

        Unlike in `snapshot`, the label may be empty.

        Returns:
            None if the state has read no token.
        """
        if not self.tokens:
            return None
        return Snapshot(begin, self.offset, tuple(self.tokens))

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        return target == (self.offset if snapshot is None else snapshot.end)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the state; None to keep the present state.
            target: the end of the snapshot; without a snapshot, the present offset.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.tokens = list(snapshot.tokens)
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Returns None and the whole snapshot: a state cannot be cut."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Returns the later state, which has read all tokens."""
        return child

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules a capture at each offset; see `Captures`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        return self.captures.take()
