"""An edge of a tree of tokens, with its snapshots."""

from __future__ import annotations

from lockstep.impl.prefix.layers import LayerSnapshot
from lockstep.impl.prefix.tokens import Path


class Node:
    """The end of an edge.

    Attributes:
        tokens: the tokens of the edge.
        begin, end: number of tokens of the path up to the begin and the end of the edge.
        children: first token of the edge → next node.
        snapshots: one snapshot for each layer. If the layer can split snapshots, it
            covers the edge; otherwise it has the whole content at the end of the edge, or
            is None if the layer was not captured there.
        size: bytes of the snapshots.
        used: time of the last use; a higher number is later. 0 before the first use.
        queued: whether the node is in the heap of an `Eviction`.
    """

    __slots__ = (
        "begin",
        "children",
        "parent",
        "queued",
        "size",
        "snapshots",
        "tokens",
        "used",
    )

    def __init__(self, parent: Node | None, tokens: Path, layers: int) -> None:
        self.parent, self.tokens = parent, tokens
        self.begin = parent.end if parent else 0
        self.children: dict[int, Node] = {}
        self.snapshots: list[LayerSnapshot | None] = [None] * layers
        self.size = self.used = 0
        self.queued = False

    @property
    def end(self) -> int:
        return self.begin + len(self.tokens)

    def count_bytes(self) -> int:
        return sum(
            snapshot.get_size() for snapshot in self.snapshots if snapshot is not None
        )
