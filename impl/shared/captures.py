"""Captures: snapshots of a cache that are scheduled before their tokens arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.memory import Snapshot


class Captures:
    """The offsets at which a cache must capture a snapshot of itself.

    Args:
        whole: whether a snapshot always has the whole content of its cache. Then
            snapshots of an empty range are also made.

    Attributes:
        boundaries: for each scheduled offset, the beginning of its snapshot.
        captured: the snapshots made so far, by offset.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.boundaries: dict[int, int] = {}
        self.captured: dict[int, Snapshot] = {}

    def prepare(self, offsets: Sequence[int], offset: int) -> None:
        """Schedules captures.

        Args:
            offsets: where to capture, ascending.
            offset: the current offset of the cache.

        Raises:
            MisuseError: captures of an earlier call were not taken, the offsets do not
                ascend, or one is less than `offset`.
        """
        if self.boundaries:
            raise MisuseError(
                "prepare: the captures of the previous prepare were not taken yet;"
                " call take first"
            )
        if any(a >= b for a, b in pairwise(offsets)):
            raise MisuseError(
                f"prepare: the offsets must ascend, but are {list(offsets)}"
            )
        if offsets and offsets[0] < offset:
            raise MisuseError(
                f"prepare: the offsets must be at least {offset}, the offset of the"
                f" cache, but begin with {offsets[0]}"
            )
        self.boundaries = dict(zip(offsets, [offset, *offsets], strict=False))

    def reach(self, first: int, last: int, take: Callable[[int, int], Snapshot]) -> None:
        """Captures at the scheduled offsets from `first` to `last`, both included.

        Args:
            first, last: the offsets that a write reaches.
            take: take(begin, end) makes the snapshot of [begin, end).
        """
        for offset, boundary in self.boundaries.items():
            is_due = first <= offset <= last and (self.whole or boundary < offset)
            if is_due and offset not in self.captured:
                self.captured[offset] = take(boundary, offset)

    def cut(self, offset: int, length: int) -> list[int]:
        """Returns the lengths of the writes for the next `length` tokens.

        A write ends at each scheduled offset.
        """
        inside = [at for at in self.boundaries if offset < at < offset + length]
        edges = [offset, *inside, offset + length]
        return [end - begin for begin, end in pairwise(edges)]

    def take(self) -> list[Snapshot | None]:
        """Returns a snapshot for each scheduled offset, and clears the schedule.

        The snapshot is None if no write reached the offset.
        """
        taken = [self.captured.get(offset) for offset in self.boundaries]
        self.boundaries, self.captured = {}, {}
        return taken

    def drop(self) -> None:
        """Clears the schedule and closes the captured snapshots."""
        for snapshot in self.captured.values():
            snapshot.close()
        self.boundaries, self.captured = {}, {}
