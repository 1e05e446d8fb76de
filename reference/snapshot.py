"""Snapshots of a cache, and captures: snapshots scheduled ahead of time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .token import Token


@dataclass(frozen=True)
class Snapshot:
    """The tokens of a cache, with the label [begin, end).

    A snapshot is immutable and independent of its cache. A snapshot of a kv cache
    contains exactly the positions of the label. A snapshot of any other cache contains
    the whole content at `end`, whatever `begin` is. For a window the content includes
    tokens before the window, so that a restored cache may return the same older tokens as
    the original cache. After `split` or `merge`, the caller may not use the snapshots
    that were passed in.
    """

    begin: int
    end: int
    tokens: tuple[Token, ...]


class Captures:
    """Snapshots that are scheduled before the tokens arrive.

    A caller cannot call `snapshot` in the middle of a large update. The caller therefore
    schedules offsets in advance, and the cache takes a snapshot when a write reaches a
    scheduled offset: a write from offset a to offset b reaches all offsets from a to b,
    both included. The label of the snapshot is [boundary, offset). The boundary is the
    previous scheduled offset; for the first scheduled offset, it is the offset of the
    cache when `prepare` was called. If the first scheduled offset is also this offset,
    its label is empty. A kv cache then captures nothing, and other caches capture their
    whole content.

    Each offset is captured once: if the cache goes back and reaches the offset again with
    other tokens, the first capture stays.
    """

    def __init__(self) -> None:
        self.scheduled: list[int] = []
        self.boundary: dict[int, int] = {}
        self.captured: dict[int, Snapshot] = {}

    def why_not(self, offsets: Sequence[int], offset: int) -> str | None:
        """Returns why `prepare(offsets)` is invalid at `offset`; None if it is valid."""
        if self.scheduled:
            return "the captures of an earlier prepare were not taken yet"
        if list(offsets) != sorted(set(offsets)):
            return "the offsets do not ascend"
        if offsets and offsets[0] < offset:
            return f"offset {offsets[0]} is behind the cache, which stands at {offset}"
        return None

    def prepare(self, offsets: Sequence[int], offset: int) -> None:
        """Schedules one capture at each of `offsets`.

        `offset` is the present offset of the cache.
        """
        broken = self.why_not(offsets, offset)
        if broken:
            raise ValueError(f"prepare({list(offsets)}): {broken}")
        self.scheduled = list(offsets)
        self.boundary = dict(zip(offsets, [offset, *offsets], strict=False))

    def reach(self, offset: int, snapshot: Callable[[int], Snapshot | None]) -> None:
        """Takes the capture that is scheduled at `offset`, if there is one.

        The cache calls it when a write begins at `offset` or has just reached it.

        Args:
            offset: the offset of the cache.
            snapshot: returns a snapshot from a boundary on; None if there is no content.
        """
        if offset in self.scheduled and offset not in self.captured:
            capture = snapshot(self.boundary[offset])
            if capture is not None:
                self.captured[offset] = capture

    def take(self) -> list[Snapshot | None]:
        """Returns one capture for each scheduled offset, and clears the schedule.

        A capture is None if no write reached its offset, or if there was no content.
        """
        taken = [self.captured.get(offset) for offset in self.scheduled]
        self.clear()
        return taken

    def clear(self) -> None:
        self.scheduled, self.boundary, self.captured = [], {}, {}
