"""The snapshots that a layer is asked to take while a request is computed."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.impl.prefix.layers import Layer, Snapshot


class Captures:
    """The captures of one layer whose snapshots cannot be cut, by their offsets.

    The layer makes them as it comes by; this collects them before more are scheduled,
    and at the end.
    """

    def __init__(self, number: int, layer: Layer) -> None:
        self.number, self.layer = number, layer
        self.scheduled: list[int] = []
        self.held: dict[int, Snapshot] = {}

    def schedule(self, offsets: Sequence[int]) -> None:
        """Schedules captures at these offsets, ascending; one where the layer stands is
        made at once. Those that are behind it were made, or never will be."""
        self.collect()
        here = self.layer.offset
        if here in offsets:
            self.capture(here)
        self.scheduled = [offset for offset in offsets if offset > here]
        if self.scheduled:
            self.layer.prepare(self.scheduled)

    def capture(self, offset: int) -> None:
        """Makes one now, if the layer stands there and it was not made before."""
        if self.layer.offset == offset and offset not in self.held:
            snapshot = self.layer.snapshot(0)
            if snapshot is not None:
                self.held[offset] = snapshot

    def collect(self) -> None:
        """Nothing is scheduled any more."""
        if self.scheduled:
            taken = zip(self.scheduled, self.layer.take(), strict=False)
            self.scheduled = []
            self.held |= {offset: made for offset, made in taken if made is not None}

    def close(self) -> None:
        """Lets go of what nobody took."""
        self.collect()
        while self.held:
            self.layer.close(self.held.popitem()[1])
