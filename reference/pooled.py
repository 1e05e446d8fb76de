"""Compressed entries: a query sees one entry for each closed window of tokens, instead of
the tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .snapshot import Snapshot
from .state import StateCache
from .token import Token


class PooledCache(StateCache):
    """Attention over the entries of one sequence.

    Entry i is the mean of the tokens at [i * pool - overlap, (i + 1) * pool): the mean of
    their K, and the mean of their V. Its last token closes its window and names the
    entry: methods return this token for the entry, and `get_pooled` returns all tokens.

    Like a state, the cache has read every token, and a snapshot has the whole content. An
    implementation keeps the entries, and the tokens of which later entries are the means:
    those of the open window, with their overlap, and those of windows that a trim may
    open again.

    Args:
        pool: number of tokens of a window, without its overlap.
        overlap: number of tokens before a window that its entry also includes, up to
            `pool`.
        lookahead: number of tokens that a trim can always take back, if it is the first
            trim after them; see `oldest`.

    Attributes:
        oldest: the first window that can be open after a trim. It is the window that was
            open `lookahead` tokens before the largest offset so far, or at the end of the
            snapshot that was restored last: a snapshot has the tokens of no earlier
            window.
    """

    def __init__(self, pool: int, overlap: int = 0, lookahead: int = 0) -> None:
        assert pool >= 1 and 0 <= overlap <= pool, f"pool {pool}, overlap {overlap}"
        assert lookahead >= 0, f"lookahead {lookahead}"
        super().__init__()
        self.pool, self.overlap, self.lookahead = pool, overlap, lookahead
        self.oldest = 0

    def size(self) -> int:
        """Returns the number of entries."""
        return len(self.state())

    def update(self, tags: Sequence[int]) -> None:
        """Reads one token for each tag."""
        super().update(tags)
        open_before = (self.offset - self.lookahead) // self.pool
        self.oldest = max(self.oldest, open_before)

    def visible(self, query: int) -> list[Token]:
        """Returns the entries of the windows that are closed at position `query`: the
        last token of each window is at this position or before."""
        return self.tokens[self.pool - 1 : query + 1 : self.pool]

    def get_pooled(self, entry: Token) -> list[Token]:
        """Returns the tokens whose mean an entry is."""
        end = entry.position + 1
        return self.tokens[max(0, end - self.pool - self.overlap) : end]

    def state(self) -> list[Token]:
        """Returns all entries."""
        return self.visible(self.offset)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer. If the last
        token of an entry is removed, the entry is removed, and its window is open again.

        Returns:
            The number of removed tokens; 0 if the cache cannot go back; see `oldest`.
        """
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        offset, target = self.offset, max(0, self.offset - count)
        return offset - target if self.restore(None, target) else 0

    def clone(self) -> PooledCache:
        """Returns an independent cache with the same tokens and no scheduled captures."""
        copy = PooledCache(self.pool, self.overlap, self.lookahead)
        copy.tokens, copy.oldest = list(self.tokens), self.oldest
        return copy

    def free(self) -> None:
        """Resets the cache. Earlier snapshots stay valid."""
        super().free()
        self.oldest = 0

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        end, oldest = self.offset, self.oldest
        if snapshot is not None:
            end, oldest = snapshot.end, snapshot.end // self.pool
        return 0 <= target <= end and target // self.pool >= oldest

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the content; None to go back to an earlier offset.
            target: the new offset, in the window that is open at the end of the snapshot;
                without a snapshot, in the window `oldest` or a later window.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.tokens = list(snapshot.tokens)
            self.oldest = snapshot.end // self.pool
        del self.tokens[target:]
        return True
