"""Compressed entries for any framework: one entry for each closed window of tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self
from weakref import WeakSet

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.layer import TokenCache, WholeSnapshots
from lockstep.impl.shared.memory import Arrays, Snapshot
from lockstep.impl.shared.ring import Ring

Combine = Callable[[Any, Any], Arrays]
"""Makes the entries of windows from K and V [1, heads, windows, tokens, dim]; returns K
and V [1, heads, windows, dim]. In a window, the tokens of the overlap come first."""


class PooledSnapshot:
    """The tokens of the open window, and all entries.

    Attributes:
        parts: a snapshot of the tokens and a snapshot of the entries; an empty snapshot
            is None. After the snapshot is closed, `parts` is None.
    """

    def __init__(self, begin: int, end: int, *parts: Snapshot | None) -> None:
        self.begin, self.end = begin, end
        self.parts: Sequence[Snapshot | None] | None = parts

    def get_parts(self) -> Sequence[Snapshot | None]:
        if self.parts is None:
            raise MisuseError(f"snapshot [{self.begin}, {self.end}) has been closed")
        return self.parts

    def close(self) -> None:
        """Releases the content. A later restore or a second close is an error."""
        for part in self.get_parts():
            if part is not None:
                part.close()
        self.parts = None


class PooledCacheBase(WholeSnapshots, TokenCache):
    """A cache of the entries of closed windows, and a ring of the last tokens.

    Entry i is made of the tokens at [i * pool - overlap, (i + 1) * pool). The ring keeps
    the tokens from the start of the window `oldest` on, with its overlap; this is the
    first window that a trim can open again. The ring is one column larger than needed, so
    that it never returns its columns in another order than that of positions.

    Args:
        pool: number of tokens of a window.
        overlap: number of tokens before a window that its entry also has.
        lookahead: number of tokens, such as drafts, that a trim can always take back.
        combine: makes entries from tokens; None for the mean of K and the mean of V.
        options: step, fill and mask, as of `KVCache`.

    Attributes:
        entries: the entries; entry i is at position i.
    """

    cache_of_entries: ClassVar[Callable[..., KVCacheBase]]
    """The class of `entries`."""

    def __init__(
        self,
        pool: int,
        overlap: int = 0,
        lookahead: int = 0,
        combine: Combine | None = None,
        **options: Any,
    ) -> None:
        self.arguments, self.options = (pool, overlap, lookahead, combine), options
        self.pool, self.overlap, self.lookahead = pool, overlap, lookahead
        if self.pool < 1:
            raise MisuseError(f"pool must be at least 1 token, not {self.pool}")
        if not 0 <= self.overlap <= self.pool:
            raise MisuseError(
                f"overlap must be at least 0 and at most {self.pool} (pool),"
                f" not {self.overlap}"
            )
        if self.lookahead < 0:
            raise MisuseError(
                f"lookahead must be at least 0 tokens, not {self.lookahead}"
            )
        entries = type(self).cache_of_entries(**options)
        columns = pool + overlap + lookahead
        ring = Ring(columns, columns, twin=False)
        memory = type(entries.memory)(ring, entries.memory.fill)
        super().__init__(memory, None, entries.mask)
        self.entries, self.combine = entries, combine or self.average
        self.oldest = 0
        self.snapshots: WeakSet[PooledSnapshot] = WeakSet()

    def make_empty(self) -> Self:
        return type(self)(*self.arguments, **self.options)

    @abstractmethod
    def cut_windows(self, array: Any, width: int) -> Any:
        """Returns [1, heads, windows, width, dim]: windows of `width` tokens, one every
        `pool` tokens; further tokens at the end are ignored."""

    @abstractmethod
    def average(self, keys: Any, values: Any) -> Arrays:
        """Returns the means over the tokens of each window, computed in float32."""

    @abstractmethod
    def make_stairs(self, counts: Sequence[int], width: int) -> Any:
        """Returns a mask of `width` columns, of which each row sees the first ones."""

    def get_start(self, window: int) -> int:
        """Returns the first token of a window, with its overlap."""
        return max(0, window * self.pool - self.overlap)

    def make_mask(self, length: int, rows: int) -> Any:
        """Returns the mask of the next update: a row sees the entries whose windows it
        closes, and earlier ones. See `TokenCache.make_mask`."""
        if length == rows == 1:
            return None
        ends = range(self.offset + 1, self.offset + length + 1)
        counts = [end // self.pool for end in ends] + [0] * (rows - length)
        return self.make_stairs(counts, counts[length - 1])

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V.

        Returns:
            K and V of all entries.
        """
        self.accept((keys, values))
        self.capture(self.offset, self.offset)
        begin = 0
        for count in self.captures.cut(self.offset, keys.shape[2]):
            self.append(cut((keys, values), begin, begin + count))
            begin += count
            self.capture(self.offset, self.offset)
        return self.view() or cut((keys, values), 0, 0)

    def append(self, arrays: Arrays) -> None:
        begin, end = self.offset, self.offset + arrays[0].shape[2]
        window = begin // self.pool
        if end // self.pool > window:
            first = self.get_start(window)
            run = arrays
            if first < begin:
                run = self.memory.join([self.memory.read(first, begin), arrays])
            self.entries.update(*self.make_entries(run, window))
        self.oldest = max(self.oldest, (end - self.lookahead) // self.pool)
        first = self.get_start(self.oldest)
        kept = max(first, begin)
        if kept < end:
            self.store(first, kept, end, cut(arrays, kept - begin, end - begin))
        self.offset = end

    def make_entries(self, run: Arrays, window: int) -> Arrays:
        """Returns the entries of the closed windows in a run of tokens, from `window`
        on."""
        pieces = [(run, self.pool + self.overlap)]
        if not window and self.overlap:
            rest = cut(run, self.pool - self.overlap, run[0].shape[2])
            pieces = [(cut(run, 0, self.pool), self.pool), (rest, pieces[0][1])]
        made = [
            self.combine(*(self.cut_windows(array, width) for array in piece))
            for piece, width in pieces
            if piece[0].shape[2] >= width
        ]
        return self.memory.join(made)

    def view(self) -> Arrays | None:
        """Returns K and V of all entries; None if there are none."""
        return self.entries.view()

    def size(self) -> int:
        """Returns the number of entries."""
        return self.entries.size()

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer.

        Returns:
            The number of removed tokens; 0 if an earlier window than `oldest` would be
            open.
        """
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        trimmed = min(count, self.offset)
        return trimmed if self.restore(None, self.offset - trimmed) else 0

    def clone(self) -> Self:
        """Returns an independent cache with the same content."""
        copied = self.make_empty()
        copied.form, copied.offset, copied.oldest = self.form, self.offset, self.oldest
        copied.entries = self.entries.clone()
        first = self.get_start(self.oldest)
        if first < self.offset:
            copied.memory.share(self.memory, first, self.offset)
        return copied

    def free(self) -> None:
        super().free()
        self.entries.free()
        self.oldest = 0

    def held(self) -> dict[str, int]:
        """Counts the memory of the tokens, the entries and the snapshots."""
        parts = self.memory.held(), self.entries.held()
        count = sum(snapshot.parts is not None for snapshot in self.snapshots)
        return {"bytes": sum(part["bytes"] for part in parts), "snapshots": count}

    def get_snapshot(self, begin: int, end: int) -> PooledSnapshot:  # type: ignore[override]
        first = self.get_start(end // self.pool)
        tokens = Snapshot(self.memory, first, begin, end) if first < end else None
        snapshot = PooledSnapshot(begin, end, tokens, self.entries.snapshot(0))
        self.snapshots.add(snapshot)
        return snapshot

    def can_restore(self, snapshot: PooledSnapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        end, oldest = self.offset, self.oldest
        if snapshot is not None:
            end, oldest = snapshot.end, snapshot.end // self.pool
        return 0 <= target <= end and target // self.pool >= oldest

    def restore(self, snapshot: PooledSnapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the whole content. None to go back.
            target: the new offset. Its window is open at the end of the snapshot; without
                a snapshot, it is `oldest` or a later window.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        entries = None
        if snapshot is not None:
            tokens, entries = snapshot.get_parts()
            if tokens is not None and not tokens.is_in(self.memory):
                self.store(tokens.first, tokens.first, tokens.end, tokens.read())
            self.oldest = snapshot.end // self.pool
        self.entries.restore(entries, target // self.pool)
        self.offset = target
        return True


def cut(arrays: Arrays, begin: int, end: int) -> Arrays:
    """Returns the tokens [begin, end)."""
    return arrays[0][:, :, begin:end], arrays[1][:, :, begin:end]
