"""Snapshots that are scheduled before the tokens arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from lockstep.impl.shared.memory import Snapshot


class Captures:
    """The offsets at which a cache has been asked to capture itself."""

    def __init__(self) -> None:
        self.boundaries: dict[int, int] = {}
        self.captured: dict[int, Snapshot] = {}

    def prepare(self, offsets: Sequence[int], offset: int) -> None:
        """Schedules captures at `offsets` for a cache that stands at `offset`.

        Raises ValueError if earlier captures were not taken, or the offsets do not
        ascend, or one lies behind the cache.
        """
        if self.boundaries:
            raise ValueError("prepare: captures of an earlier prepare were not taken yet")
        if any(a >= b for a, b in pairwise(offsets)):
            raise ValueError(f"prepare: the offsets {list(offsets)} do not ascend")
        if offsets and offsets[0] < offset:
            raise ValueError(
                f"prepare: offset {offsets[0]} is behind the cache, at {offset}"
            )
        self.boundaries = dict(zip(offsets, [offset, *offsets], strict=False))

    def reach(
        self, before: int, after: int, take: Callable[[int, int], Snapshot]
    ) -> None:
        """A write has moved the cache from one offset to another; take(begin, end)
        makes the snapshot that ends at a scheduled offset in between."""
        for offset, boundary in self.boundaries.items():
            due = before < offset <= after and boundary < offset
            if due and offset not in self.captured:
                self.captured[offset] = take(boundary, offset)

    def cut(self, offset: int, length: int) -> list[int]:
        """The lengths of the writes that `length` tokens must come in, so that every
        scheduled offset falls between two of them."""
        inside = [at for at in self.boundaries if offset < at < offset + length]
        edges = [offset, *inside, offset + length]
        return [end - begin for begin, end in pairwise(edges)]

    def take(self) -> list[Snapshot | None]:
        """One for each scheduled offset, None where no write reached it. Clears the
        schedule."""
        taken = [self.captured.get(offset) for offset in self.boundaries]
        self.boundaries, self.captured = {}, {}
        return taken

    def drop(self) -> None:
        """Forgets the schedule and closes what was captured."""
        for snapshot in self.captured.values():
            snapshot.close()
        self.boundaries, self.captured = {}, {}
