"""Which offsets of a request the layers can be brought to, and how."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.impl.prefix.layers import Layer
from lockstep.impl.prefix.tree import Match

Numbered = Sequence[tuple[int, Layer]]
"""The layers that have a cache, with their numbers."""


class Reach:
    """The part of a request that is stored, and the part that the layers hold.

    common: for how many tokens the layers agree with it.
    """

    def __init__(self, match: Match, common: int) -> None:
        self.match, self.common = match, common
        self.at = {node.end: node for node in match.nodes}

    def can_reach(self, number: int, layer: Layer, target: int) -> bool:
        """Nothing can always be reached. Else the layer can be cut there, was captured
        there, or goes back from where it stands."""
        if layer.can_split or target == 0:
            return True
        if target in self.at and self.at[target].snapshots[number] is not None:
            return True
        return target <= self.common and layer.can_restore(None, target)

    def find_deepest(self, layers: Numbered, most: int) -> int:
        """The largest offset up to `most` that all layers can be brought to."""
        for target in self.list_candidates(most):
            if all(self.can_reach(*one, target) for one in layers):
                return target
        return 0

    def list_candidates(self, most: int) -> list[int]:
        """From the largest on. Between two of these a layer can go wherever it can go at
        the larger one, or nowhere."""
        places = {*self.at, min(self.common, most), most}
        return sorted((place for place in places if place <= most), reverse=True)

    def find_obstacle(self, layers: Numbered, target: int) -> str:
        """The first layer that cannot be brought to `target`, in words."""
        for number, layer in layers:
            if not self.can_reach(number, layer, target):
                return f"layer {number} cannot go to offset {target}"
        raise AssertionError(f"every layer can go to offset {target}")

    def restore(self, number: int, layer: Layer, target: int) -> bool:
        """Brings one layer to where it can be brought; False if it refuses."""
        if target <= self.common and layer.can_restore(None, target):
            return layer.restore(None, target)
        if layer.can_split:
            return self.restore_edges(number, layer, target)
        return layer.restore(self.at[target].snapshots[number], target)

    def restore_edges(self, number: int, layer: Layer, target: int) -> bool:
        """Node by node, from the edge on in which the layer leaves the request; what it
        holds before that edge stays."""
        return all(
            layer.restore(node.snapshots[number], min(node.end, target))
            for node in self.match.path
            if self.common < node.end and node.begin < target
        )
