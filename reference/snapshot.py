"""Snapshots of a cache, and captures: snapshots scheduled ahead of time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .token import Token


@dataclass(frozen=True)
class Snapshot:
    """The tokens of a cache, under the label [begin, end).

    A snapshot is immutable and independent of its cache. Of a kv cache it has exactly the
    positions of the label, of other caches the whole content at `end`, whatever the
    label: of a window that includes older tokens, so that a restored cache may return
    what the cache might have returned before. `split` and `merge` consume their inputs:
    the caller may not use them again.
    """

    begin: int
    end: int
    tokens: tuple[Token, ...]


class Captures:
    """Snapshots that are scheduled before the tokens arrive.

    Nobody can call `snapshot` in the middle of a large update. So the offsets are given
    beforehand, and the cache takes a snapshot as a write comes by: a write from offset a
    to offset b reaches all offsets from a to b, both included. The label is
    [boundary, offset); the boundary is the scheduled offset before, or for the first the
    offset of the cache at the time of scheduling. So the label of a capture where the
    cache stands is empty: of a kv cache that is nothing, of others the whole content.

    A capture is final: if the cache goes back and writes other tokens past the same
    offset, it does not capture again.
    """

    def __init__(self) -> None:
        self.scheduled: list[int] = []
        self.boundary: dict[int, int] = {}
        self.captured: dict[int, Snapshot] = {}

    def why_not(self, offsets: Sequence[int], offset: int) -> str | None:
        """Returns the rule that `prepare(offsets)` breaks at `offset`, or None."""
        if self.scheduled:
            return "the captures of an earlier prepare were not taken yet"
        if list(offsets) != sorted(set(offsets)):
            return "the offsets do not ascend"
        if offsets and offsets[0] < offset:
            return f"offset {offsets[0]} is behind the cache, which stands at {offset}"
        return None

    def prepare(self, offsets: Sequence[int], offset: int) -> None:
        """Schedules one capture at each of `offsets`; the cache stands at `offset`."""
        broken = self.why_not(offsets, offset)
        if broken:
            raise ValueError(f"prepare({list(offsets)}): {broken}")
        self.scheduled = list(offsets)
        self.boundary = dict(zip(offsets, [offset, *offsets], strict=False))

    def reach(self, offset: int, snapshot: Callable[[int], Snapshot | None]) -> None:
        """Takes the capture that is due at `offset`, if any; a write begins there, or has
        just reached it.

        Args:
            offset: the offset of the cache.
            snapshot: takes a snapshot from a boundary on; None if there is nothing.
        """
        if offset in self.scheduled and offset not in self.captured:
            capture = snapshot(self.boundary[offset])
            if capture is not None:
                self.captured[offset] = capture

    def take(self) -> list[Snapshot | None]:
        """Returns one capture for each scheduled offset, None where no write reached it,
        and clears the schedule."""
        taken = [self.captured.get(offset) for offset in self.scheduled]
        self.clear()
        return taken

    def clear(self) -> None:
        self.scheduled, self.boundary, self.captured = [], {}, {}
