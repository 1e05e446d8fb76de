"""Cuts the edge of the tree in which an open request begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.impl.prefix.layers import Layer, LayerSnapshot
from lockstep.impl.prefix.node import Node

Numbered = Iterable[tuple[int, Layer]]


@dataclass
class Cut:
    """A temporary cut of the snapshots of one edge, while a request reads this edge.

    Before positions of a layer are overwritten, a snapshot that refers to any of them is
    copied as a whole. A request overwrites positions from its first computed token on.
    The edge is therefore cut at that token in advance, so that the snapshot before the
    cut is not copied.

    Attributes:
        node: the node of the edge.
        at: the offset of the cut.
        remaining: the snapshots of [at, end), by layer number.
    """

    node: Node
    at: int
    remaining: dict[int, LayerSnapshot]

    @classmethod
    def make(cls, node: Node, at: int, layers: Numbered) -> Cut:
        """Cuts the snapshots that are not copied yet; a copied snapshot needs no cut."""
        remaining: dict[int, LayerSnapshot] = {}
        for number, layer in layers:
            snapshot = node.snapshots[number]
            if layer.can_split and snapshot is not None and snapshot.memory is not None:
                node.snapshots[number], remaining[number] = layer.split(snapshot, at)
        return cls(node, at, remaining)

    def move(self, end: int, layers: Numbered) -> None:
        """Moves the cut to `end`; the layers have now read the edge up to this offset.

        The layers hold these tokens, so the first part can refer to them without a copy.
        """
        for number, layer in layers:
            if number in self.remaining and end > self.at:
                read, remaining = layer.split(self.remaining.pop(number), end)
                first = self.node.snapshots[number]
                assert first is not None
                layer.close(first)
                layer.close(read)
                self.node.snapshots[number] = take_pieces(layer, self.node.begin, [end])[
                    0
                ]
                if remaining is not None:
                    self.remaining[number] = remaining
        self.at = end

    def undo(self, layers: Numbered) -> None:
        """Merges the two parts of each snapshot."""
        for number, layer in layers:
            if number in self.remaining:
                pair = self.node.snapshots[number], self.remaining.pop(number)
                self.node.snapshots[number] = layer.merge(*pair)


def take_pieces(layer: Layer, begin: int, ends: Iterable[int]) -> list[LayerSnapshot]:
    """Takes a snapshot of a layer from `begin` on, cut at `ends`.

    The offset of the layer may be larger than the last end.
    """
    pieces, remaining = list[LayerSnapshot](), layer.snapshot(begin)
    for end in ends:
        piece, remaining = layer.split(remaining, end)
        pieces.append(piece)
    if remaining is not None:
        layer.close(remaining)
    return pieces
