"""Eviction order: the least recently used node first."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.tree import Tree


class Eviction:
    """The nodes of a tree in order of last use.

    Attributes:
        heap: (used, node), at most once for each node. `used` never decreases. If an
            entry is outdated, the node comes up too early and is pushed again with the
            new value. A node that cannot be evicted is not in the heap. No two nodes have
            the same `used`, because each node is touched before it is pushed.
        clock: number of uses so far.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.heap: list[tuple[int, Node]] = []
        self.clock = 0

    def touch(self, node: Node) -> None:
        """Marks a node as just used."""
        self.clock += 1
        node.used = self.clock
        self.push(node)

    def push(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            heappush(self.heap, (node.used, node))

    def pop(self) -> Node | None:
        """Returns the least recently used node; None if there is none."""
        while self.heap:
            used, node = heappop(self.heap)
            node.queued = False
            if used == node.used:
                return node
            self.push(node)
        return None

    def clear(self) -> None:
        self.heap = []

    def shrink(self, limit: int, protected: Collection[Node]) -> None:
        """Evicts nodes until at most `limit` bytes are stored.

        Protected nodes and the paths to protected nodes are never evicted.
        """
        self.tree.tighten()
        aside = []
        while self.tree.size > limit and (node := self.pop()):
            if node in protected:
                aside.append(node)
            else:
                self.evict(node)
        for node in aside:
            self.push(node)

    def evict(self, node: Node) -> None:
        """Evicts a node.

        A leaf is removed with the tokens of its edge. An inner node keeps its tokens and
        loses its captures. It is then merged with its child if it has a single child. An
        inner node without captures is not evicted until it is a leaf.
        """
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
