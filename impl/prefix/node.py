"""An edge of a tree of tokens, with its snapshots."""

from __future__ import annotations

from lockstep.impl.prefix.layers import LayerSnapshot
from lockstep.impl.prefix.tokens import Path


class Node:
    """The end of an edge.

    Attributes:
        tokens: the tokens of the edge.
        begin, end: number of tokens of the path before the edge, and up to its end.
        children: the next nodes, by first token.
        snapshots: one for each layer: of the edge, if the layer can split it, else of the
            whole content at the end; None if it was not captured.
        size: bytes of the snapshots.
        used: time of the last use; higher is later. 0 until it is used.
        queued: whether it is in the heap of an `Eviction`.
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
