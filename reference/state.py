"""The recurrent state: a sum of everything read so far, which cannot be taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Captures, Snapshot
from .token import Token


class StateCache:
    """The state of a linear-recurrent layer over one sequence.

    An implementation keeps two arrays of fixed size, the inputs of a short convolution
    and a running state, each a function of all tokens in their order. Here the tokens
    themselves are kept: two states are the same if they come from the same tokens.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.captures = Captures()

    @property
    def offset(self) -> int:
        """How many tokens the state has read."""
        return len(self.tokens)

    def update(self, tags: Sequence[int]) -> None:
        """Reads one token for each tag."""
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
            self.captures.reach(self.offset, self.snapshot)

    def visible(self, query: int) -> list[Token]:
        """The tokens that the state at position `query` has read."""
        return [token for token in self.tokens if token.position <= query]

    def state(self) -> list[Token]:
        """All tokens that the state has read, in order."""
        return list(self.tokens)

    def older(self) -> list[Token]:
        """What may come along with `state` without being part of it: nothing."""
        return []

    def trim(self, count: int) -> int:
        """Always 0: a token that was read cannot be taken out again."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        return 0

    def clone(self) -> StateCache:
        """An independent cache with the same state; a schedule stays behind."""
        copy = StateCache()
        copy.tokens = list(self.tokens)
        return copy

    def free(self) -> None:
        """Back to a fresh cache. Snapshots taken before live on."""
        self.tokens = []
        self.captures.clear()

    def snapshot(self, begin: int) -> Snapshot | None:
        """The state as it is; `begin` only decides whether there is anything new, and
        labels it."""
        begin = max(0, begin)
        if self.offset <= begin:
            return None
        return Snapshot(begin, self.offset, tuple(self.tokens))

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Whether `restore` would do it, and not refuse."""
        return target == (self.offset if snapshot is None else snapshot.end)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`, or refuses and changes nothing. Only the
        live offset, or exactly the snapshot's end, can be reached."""
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.tokens = list(snapshot.tokens)
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """A state cannot be cut: all of it stays on the right."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """The later state has all that is needed."""
        return child

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures; see `Captures`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        return self.captures.take()
