"""One edge of a tree of tokens, and what is stored of it."""

from __future__ import annotations

from lockstep.impl.prefix.layers import Snapshot
from lockstep.impl.prefix.tokens import Path


class Node:
    """The end of an edge.

    tokens: those of the edge. begin, end: how many come before it, and up to its end.
    snapshots: one for each layer: exactly the edge, if the layer can split it; else all
    that it has at the end, or None if it was not captured there. size: their bytes.
    used: when the node was last used; higher is later. born: when it was made; decides
    between nodes that were never used. queued: it is in the queue of an `Eviction`.
    """

    __slots__ = (
        "begin",
        "born",
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
        self.snapshots: list[Snapshot | None] = [None] * layers
        self.size = self.used = self.born = 0
        self.queued = False

    @property
    def end(self) -> int:
        return self.begin + len(self.tokens)

    def count_bytes(self) -> int:
        return sum(one.get_size() for one in self.snapshots if one is not None)
