"""Determines the offsets of a request to which the layers can be brought."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.impl.prefix.layers import Layer
from lockstep.impl.prefix.tree import Match

Numbered = Sequence[tuple[int, Layer]]
"""(number, layer) for each layer that has a cache."""


class Reach:
    """The stored prefix of a request, and the tokens of it that the layers hold.

    Args:
        match: the stored prefix.
        common: number of leading tokens of the request that the layers hold.

    Attributes:
        at: end of a node → node, for the nodes of the match.
    """

    def __init__(self, match: Match, common: int) -> None:
        self.match, self.common = match, common
        self.at = {node.end: node for node in match.nodes}

    def can_reach(self, number: int, layer: Layer, target: int) -> bool:
        """Returns whether a layer can be brought to offset `target`.

        This is possible if `target` is 0, if the snapshots of the layer can be split, if
        the layer was captured at `target`, or if it can go back to `target` from its
        current offset.
        """
        if layer.can_split or target == 0:
            return True
        if target in self.at and self.at[target].snapshots[number] is not None:
            return True
        return target <= self.common and layer.can_restore(None, target)

    def find_deepest(self, layers: Numbered, most: int) -> int:
        """Returns the largest offset up to `most` to which all layers can be brought."""
        for target in self.list_candidates(most):
            if all(self.can_reach(*numbered, target) for numbered in layers):
                return target
        return 0

    def list_candidates(self, most: int) -> list[int]:
        """Returns the offsets to try, descending.

        A layer that can reach an offset between two candidates can also reach the larger
        candidate.
        """
        offsets = {*self.at, min(self.common, most), most}
        return sorted((offset for offset in offsets if offset <= most), reverse=True)

    def find_obstacle(self, layers: Numbered, target: int) -> str:
        """Describes the first layer that cannot be brought to `target`."""
        number = next(n for n, layer in layers if not self.can_reach(n, layer, target))
        return f"layer {number} cannot go to offset {target}"

    def restore(self, number: int, layer: Layer, target: int) -> bool:
        """Brings a layer to `target`, which it can reach; returns False if it refuses."""
        if target <= self.common and layer.can_restore(None, target):
            return layer.restore(None, target)
        if layer.can_split:
            return self.restore_edges(number, layer, target)
        return layer.restore(self.at[target].snapshots[number], target)

    def restore_edges(self, number: int, layer: Layer, target: int) -> bool:
        """Restores a layer edge by edge, from the first edge that the layer does not hold
        completely.

        Earlier tokens of the layer stay.
        """
        return all(
            layer.restore(node.snapshots[number], min(node.end, target))
            for node in self.match.path
            if self.common < node.end and node.begin < target
        )
