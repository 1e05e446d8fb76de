"""Eviction order: the least recently used goes first."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.tree import Tree


class Eviction:
    """The nodes of a tree in the order in which they were used.

    heap: (used, born, node), at most once for each node. `used` may have grown since: it
    never shrinks, so the entry comes up too early, and is put back where it belongs. A
    node that cannot go is left out until it can.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.heap: list[tuple[int, int, Node]] = []
        self.clock = 0

    def touch(self, node: Node) -> None:
        """The node is used now."""
        self.clock += 1
        node.used = self.clock
        self.push(node)

    def push(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            heappush(self.heap, (node.used, node.born, node))

    def pop(self) -> Node | None:
        """The node that was not used for the longest time; None if none is left."""
        while self.heap:
            used, _, node = heappop(self.heap)
            node.queued = False
            if used == node.used:
                return node
            self.push(node)
        return None

    def clear(self) -> None:
        self.heap = []

    def shrink(self, limit: int, kept: Collection[Node]) -> None:
        """Lets nodes go until what is stored takes at most `limit` bytes, or only `kept`
        and what leads there is left."""
        if self.tree.size > limit:
            self.tree.tighten()
        aside = []
        while self.tree.size > limit and (node := self.pop()):
            if node in kept:
                aside.append(node)
            else:
                self.evict(node)
        for node in aside:
            self.push(node)

    def evict(self, node: Node) -> None:
        """The end of a path goes, back to the node before. On the way only what was
        captured goes, and the node too unless paths part there. Where nothing was
        captured nothing goes, until the node is the end of a path."""
        parent = node.parent
        assert parent is not None
        if not node.children:
            self.tree.remove(node)
            if not parent.children and parent is not self.tree.root:
                self.push(parent)
        elif self.tree.is_captured(node):
            if len(node.children) == 1:
                self.tree.merge(node)
            else:
                self.tree.uncapture(node)
