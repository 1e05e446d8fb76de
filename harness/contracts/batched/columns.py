"""Defines a reference batch that counts columns, for the conditions of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.reference.batched import BatchedCache, Row
from lockstep.reference.list import ListCache, Part
from lockstep.reference.rotating import RotatingCache


def list_parts(cache: Row) -> Sequence[Part]:
    """Lists the caches of one layer."""
    return cache.parts if isinstance(cache, ListCache) else [cache]


def find_window(cache: Row) -> int | None:
    """Returns the window of a ring, or of a list's first ring; None without a ring."""
    rings = (member for member in list_parts(cache) if isinstance(member, RotatingCache))
    return next((ring.window for ring in rings), None)


class CountedBatch(BatchedCache):
    """A reference batch that also tracks numbers of an implementation with padding.

    Attributes:
        reached: the largest width since the batch was opened or freed.
        ever: the largest width since the batch was opened; some caches keep empty arrays
            with their former rows.
        written: the number of columns written since the batch was made; a trim does not
            lower the number.
        turned: the number of single columns written into a full ring since the last
            update with several columns or with padding, which sorts the ring by position.
        finalized: the number of calls of `finalize` since the batch was made.
        is_loaded: whether the batch was loaded and no right padding was announced since.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(rows)
        self.reached = self.ever = self.written = self.width
        self.turned = self.finalized = 0
        self.is_loaded = False
        self.window = find_window(self.rows[0])

    def update(self, length: int, tags: Sequence[Sequence[int]]) -> None:
        is_full = self.window is not None and self.width >= self.window
        in_place = length == 1 and self.coming is None
        self.turned = self.turned + is_full if in_place else 0
        super().update(length, tags)
        self.written += length
        self.note_width()

    def note_width(self) -> None:
        self.reached = max(self.reached, self.width)
        self.ever = max(self.ever, self.width)

    def pad_right(self, lengths: Sequence[int]) -> None:
        super().pad_right(lengths)
        self.is_loaded = False

    def finalize(self) -> None:
        super().finalize()
        self.finalized += 1

    def repeat(self, times: int) -> None:
        self.select([row for row in range(len(self.rows)) for _ in range(times)])

    def extend(self, added: BatchedCache) -> None:
        super().extend(added)
        assert isinstance(added, CountedBatch)
        if self.window is None or (self.turned - added.turned) % self.window:
            self.turned = 0
        self.written = max(self.written, added.written)
        self.finalized = min(self.finalized, added.finalized)
        self.note_width()

    def clone(self) -> CountedBatch:
        copy = super().clone()
        assert isinstance(copy, CountedBatch)
        copy.reached, copy.ever = self.reached, self.ever
        copy.written, copy.turned = self.written, self.turned
        copy.finalized, copy.is_loaded = self.finalized, self.is_loaded
        return copy

    def free(self) -> None:
        super().free()
        self.written = self.turned = self.reached = 0
