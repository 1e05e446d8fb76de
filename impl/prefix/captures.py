"""Schedules and collects the snapshots that a layer takes during a request."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.impl.prefix.layers import Layer, LayerSnapshot


class Captures:
    """The captures of one layer whose snapshots cannot be cut.

    The layer makes a capture when it reaches a scheduled offset. The captures are
    collected before further captures are scheduled, and at the end.

    Attributes:
        number: number of the layer.
        scheduled: the offsets at which the layer should make captures, ascending.
        held: the collected captures, by offset.
    """

    def __init__(self, number: int, layer: Layer) -> None:
        self.number, self.layer = number, layer
        self.scheduled: list[int] = []
        self.held: dict[int, LayerSnapshot] = {}

    def schedule(self, offsets: Sequence[int]) -> None:
        """Schedules captures at these offsets, ascending.

        A capture at the current offset is made immediately; earlier offsets are ignored.
        """
        self.collect()
        at = self.layer.offset
        if at in offsets:
            self.capture(at)
        self.scheduled = [offset for offset in offsets if offset > at]
        if self.scheduled:
            self.layer.prepare(self.scheduled)

    def capture(self, offset: int) -> None:
        """Captures the layer at `offset`, which is not 0.

        Does nothing if the layer is not at `offset` or already has this capture.
        """
        if self.layer.offset == offset and offset not in self.held:
            self.held[offset] = self.layer.snapshot(0)

    def collect(self) -> None:
        """Takes the captures from the layer, which clears its schedule."""
        if self.scheduled:
            taken = zip(self.scheduled, self.layer.take(), strict=False)
            self.scheduled = []
            self.held |= {
                offset: snapshot for offset, snapshot in taken if snapshot is not None
            }

    def close(self) -> None:
        """Closes the captures that were not taken."""
        self.collect()
        while self.held:
            self.layer.close(self.held.popitem()[1])
