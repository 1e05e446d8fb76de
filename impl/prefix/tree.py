"""Stores the conversations of a trie in a tree; each edge is a run of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.impl.prefix.cut import Cut, take_pieces
from lockstep.impl.prefix.layers import Layer, Layers, LayerSnapshot
from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.tokens import Path, count_common


@dataclass
class Match:
    """The longest stored prefix of some tokens, as a path through the tree.

    Attributes:
        length: number of tokens matched.
        nodes: the nodes whose edges match completely.
        inside: the node whose edge matches in part; None if there is none.
    """

    length: int
    nodes: list[Node] = field(default_factory=list)
    inside: Node | None = None

    @property
    def path(self) -> list[Node]:
        return self.nodes if self.inside is None else [*self.nodes, self.inside]


class Tree:
    """A tree whose edges have tokens, and the snapshots of each layer for these tokens.

    Attributes:
        layers: the layers that have a cache, with their numbers.
        whole: numbers of the layers whose snapshots cannot be cut.
        tokens: number of tokens of all edges.
        size: bytes of all snapshots.
        cut: the edge that is cut, or None.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = [(n, layer) for n, layer in enumerate(layers) if layer is not None]
        self.whole = [n for n, layer in self.layers if not layer.can_split]
        self.width = len(layers)
        self.root = Node(None, (), self.width)
        self.tokens = self.size = 0
        self.cut: Cut | None = None

    def match(self, tokens: Path) -> Match:
        """Returns the longest stored prefix of the tokens, from the root on.

        Whole edges are compared in one operation. Then the offset of the difference is
        searched in the first edge that differs.
        """
        nodes_found, node = Match(0), self.root
        while nodes_found.length < len(tokens):
            child = node.children.get(tokens[nodes_found.length])
            if child is None:
                break
            piece = tokens[child.begin : child.end]
            if piece != child.tokens:
                nodes_found.length += count_common(piece, child.tokens)
                nodes_found.inside = child
                break
            nodes_found.nodes.append(child)
            nodes_found.length, node = child.end, child
        return nodes_found

    def list_nodes(self) -> Iterator[Node]:
        """Yields all nodes except the root, each before its children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            yield node

    def is_captured(self, node: Node) -> bool:
        """Returns whether a layer whose snapshots cannot be cut was captured at
        the node."""
        return any(node.snapshots[number] is not None for number in self.whole)

    # --- growing ------------------------------------------------------------------------

    def insert(self, path: Path, ends: Sequence[int]) -> list[Node]:
        """Stores a path that the layers have read.

        A node is also added where the path leaves the stored paths.

        Args:
            path: the tokens of the path.
            ends: offsets of the nodes, ascending up to the end of the path.

        Returns:
            The nodes at `ends`.
        """
        match = self.match(path)
        if self.cut is not None and match.length >= self.cut.at:
            self.cut.move(min(match.length, self.cut.node.end), self.layers)
        else:
            self.tighten()
        if match.inside is not None:
            match.nodes.append(self.split(match.inside, match.length))
        there = self.find(match.nodes, [end for end in ends if end <= match.length])
        last = match.nodes[-1] if match.nodes else self.root
        return there + self.append(
            last, path, [end for end in ends if end > match.length]
        )

    def find(self, nodes: Sequence[Node], ends: Sequence[int]) -> list[Node]:
        """Returns the nodes at `ends`, on a stored path that consists of `nodes`.

        If an end is inside an edge, the edge is split there.
        """
        nodes_found, edges = [], iter(nodes)
        node = next(edges, self.root)
        for end in ends:
            while node.end < end:
                node = next(edges)
            nodes_found.append(node if node.end == end else self.split(node, end))
        return nodes_found

    def append(self, node: Node, path: Path, ends: Sequence[int]) -> list[Node]:
        """Adds a chain of nodes at `ends` after `node`.

        The edges have the tokens of the path. Snapshots that can be split are cut at
        `ends`.
        """
        added = []
        for end in ends:
            node = self.add(node, path[node.end : end])
            added.append(node)
        for number, layer in self.layers:
            if layer.can_split and added:
                pieces = take_pieces(layer, added[0].begin, ends)
                for node, piece in zip(added, pieces, strict=True):
                    node.snapshots[number] = piece
        for node in added:
            self.weigh(node)
        return added

    def add(self, parent: Node, tokens: Path) -> Node:
        node = self.make(parent, tokens)
        self.tokens += len(tokens)
        return node

    def make(self, parent: Node, tokens: Path) -> Node:
        node = Node(parent, tokens, self.width)
        parent.children[tokens[0]] = node
        return node

    def split(self, node: Node, end: int) -> Node:
        """Inserts a new parent of `node` at `end`, inside its edge.

        Snapshots that cannot be cut stay with `node`.
        """
        assert node.parent is not None and node.begin < end < node.end
        at = end - node.begin
        upper = self.make(node.parent, node.tokens[:at])
        node.tokens, node.begin, node.parent = node.tokens[at:], end, upper
        upper.children[node.tokens[0]] = node
        for number, layer in self.layers:
            halves = self.split_snapshot(node, number, layer, end)
            upper.snapshots[number], node.snapshots[number] = halves
        self.weigh(upper)
        self.weigh(node)
        return upper

    def split_snapshot(
        self, node: Node, number: int, layer: Layer, end: int
    ) -> tuple[LayerSnapshot | None, LayerSnapshot | None]:
        """Returns the snapshots before and after `end`; an earlier cut is reused."""
        snapshot = node.snapshots[number]
        if snapshot is None:
            return None, None
        if (
            self.cut is not None
            and self.cut.node is node
            and number in self.cut.remaining
        ):
            assert self.cut.at == end
            return snapshot, self.cut.remaining.pop(number)
        return layer.split(snapshot, end)

    def loosen(self, node: Node, at: int) -> None:
        """Cuts the edge of `node` at `at` if the layers are about to write inside it."""
        self.tighten()
        if node.begin < at < node.end:
            self.cut = Cut.make(node, at, self.layers)

    def tighten(self) -> None:
        """Undoes the cut, if there is one."""
        if self.cut is not None:
            self.cut.undo(self.layers)
            self.cut = None

    def put(self, node: Node, captured: Mapping[int, LayerSnapshot]) -> None:
        """Stores captures, by layer number, that the node does not have yet."""
        for number, snapshot in captured.items():
            assert node.snapshots[number] is None
            node.snapshots[number] = snapshot
        self.weigh(node)

    # --- shrinking ----------------------------------------------------------------------

    def remove(self, node: Node) -> None:
        """Removes a leaf and its edge."""
        assert node.parent is not None and not node.children
        for number, layer in self.layers:
            self.drop(node, number, layer)
        self.weigh(node)
        del node.parent.children[node.tokens[0]]
        self.tokens -= len(node.tokens)

    def merge(self, node: Node) -> None:
        """Merges a node into its only child."""
        assert node.parent is not None
        (child,) = node.children.values()
        for number, layer in self.layers:
            pair = node.snapshots[number], child.snapshots[number]
            child.snapshots[number] = layer.merge(*pair)
            node.snapshots[number] = None
        child.tokens = node.tokens + child.tokens
        child.begin, child.parent = node.begin, node.parent
        child.parent.children[child.tokens[0]] = child
        self.weigh(node)
        self.weigh(child)

    def uncapture(self, node: Node) -> None:
        """Removes the snapshots that cannot be cut.

        The tokens stay, because the child nodes need them.
        """
        for number, layer in self.layers:
            if not layer.can_split:
                self.drop(node, number, layer)
        self.weigh(node)

    def clear(self) -> None:
        """Removes everything."""
        for node in self.list_nodes():
            for number, layer in self.layers:
                self.drop(node, number, layer)
        self.root = Node(None, (), self.width)
        self.tokens = self.size = 0

    def drop(self, node: Node, number: int, layer: Layer) -> None:
        snapshot, node.snapshots[number] = node.snapshots[number], None
        if snapshot is not None:
            layer.close(snapshot)

    def weigh(self, node: Node) -> None:
        """Updates the sizes; must be called whenever the snapshots of a node change."""
        size = node.count_bytes()
        self.size += size - node.size
        node.size = size
