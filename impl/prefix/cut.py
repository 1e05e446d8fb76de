"""The edge inside which an open request begins, and what is about to be written over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.impl.prefix.layers import Layer, Snapshot
from lockstep.impl.prefix.node import Node

Numbered = Iterable[tuple[int, Layer]]


@dataclass
class Cut:
    """Snapshots of one edge in two parts, while it is not known whether paths part there.

    A snapshot that only names the memory of its layer is copied whole once a part of it
    is written over. What a request writes over begins where it begins to compute; so the
    edge is cut there beforehand, and what lies before is not copied.

    at: where. rest: by the number of a layer, what the node's snapshot lacks: [at, end).
    """

    node: Node
    at: int
    rest: dict[int, Snapshot]

    @classmethod
    def make(cls, node: Node, at: int, layers: Numbered) -> Cut:
        """Cuts what was not copied yet, for the others need no care."""
        rest: dict[int, Snapshot] = {}
        for number, layer in layers:
            snapshot = node.snapshots[number]
            if layer.can_split and snapshot is not None and snapshot.memory is not None:
                node.snapshots[number], rest[number] = layer.split(snapshot, at)
        return cls(node, at, rest)

    def move(self, end: int, layers: Numbered) -> None:
        """Cuts at `end` instead, up to where the layers have read the edge since: they
        hold what the first part lacks, and it need only be named."""
        for number, layer in layers:
            if number in self.rest and end > self.at:
                read, rest = layer.split(self.rest.pop(number), end)
                first = self.node.snapshots[number]
                assert first is not None
                layer.close(first)
                layer.close(read)
                self.node.snapshots[number] = take_pieces(layer, self.node.begin, [end])[
                    0
                ]
                if rest is not None:
                    self.rest[number] = rest
        self.at = end

    def undo(self, layers: Numbered) -> None:
        """The node has all of its edge again."""
        for number, layer in layers:
            if number in self.rest:
                pair = self.node.snapshots[number], self.rest.pop(number)
                self.node.snapshots[number] = layer.merge(*pair)

    def count_bytes(self) -> int:
        return sum(one.get_size() for one in self.rest.values())


def take_pieces(layer: Layer, begin: int, ends: Iterable[int]) -> list[Snapshot]:
    """Cuts a layer's content from `begin` on at `ends`; it may be ahead of the last."""
    pieces, rest = list[Snapshot](), layer.snapshot(begin)
    for end in ends:
        piece, rest = layer.split(rest, end)
        pieces.append(piece)
    if rest is not None:
        layer.close(rest)
    return pieces
