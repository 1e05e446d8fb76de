"""The tree without layers of a framework: edges, sizes, and what goes first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lockstep.impl.prefix.eviction import Eviction
from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.tokens import check_tokens, count_common
from lockstep.impl.prefix.tree import Tree


@dataclass(eq=False)
class Piece:
    begin: int
    end: int

    def get_size(self) -> int:
        return self.end - self.begin


class Ruler:
    """A layer that holds nothing but its offset; each token takes a byte."""

    can_split = True

    def __init__(self) -> None:
        self.offset = 0

    def snapshot(self, begin: int) -> Piece:
        return Piece(begin, self.offset)

    def split(self, piece: Piece, at: int) -> tuple[Piece | None, Piece | None]:
        if at >= piece.end:
            return piece, None
        return Piece(piece.begin, at), Piece(at, piece.end)

    def merge(self, parent: Piece, child: Piece) -> Piece:
        assert parent.end == child.begin
        return Piece(parent.begin, child.end)

    def close(self, piece: Piece) -> None: ...


class Mark(Ruler):
    """One whose snapshots cannot be cut; each takes 100 bytes."""

    can_split = False

    def snapshot(self, begin: int) -> Piece:
        return Piece(0, 100)

    def split(self, piece: Piece, at: int) -> tuple[None, Piece]:
        return None, piece

    def merge(self, parent: Any, child: Any) -> Any:
        return child


class Stored:
    """A tree and its eviction, over a ruler and a mark."""

    def __init__(self) -> None:
        self.ruler, self.mark = Ruler(), Mark()
        layers: Any = [self.ruler, None, self.mark]
        self.tree = Tree(layers)
        self.eviction = Eviction(self.tree)

    def insert(self, path: Sequence[int], ends: Sequence[int] = ()) -> None:
        """With a mark at each of `ends`, and at the end."""
        self.ruler.offset = len(path)
        for node in self.tree.insert(tuple(path), [*ends, len(path)]):
            if node.snapshots[2] is None:
                self.tree.put(node, {2: self.mark.snapshot(0)})
            self.eviction.touch(node)

    def list_paths(self) -> list[tuple[list[int], bool]]:
        """The edges that end at a node, joined, and whether there is a mark."""
        found = [(join(n), n.snapshots[2] is not None) for n in self.tree.list_nodes()]
        return sorted(found)

    def check(self) -> None:
        nodes = list(self.tree.list_nodes())
        assert self.tree.size == self.tree.compute_size()
        assert self.tree.tokens == sum(len(node.tokens) for node in nodes)
        for node in nodes:
            assert node.parent is not None
            assert node.parent.children[node.tokens[0]] is node
            assert node.begin == node.parent.end
            piece: Any = node.snapshots[0]
            assert (piece.begin, piece.end) == (node.begin, node.end)


def join(node: Node) -> list[int]:
    return [*(join(node.parent) if node.parent else []), *node.tokens]


@pytest.fixture
def stored() -> Stored:
    return Stored()


LONG = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("second", "ends", "paths", "size"),
    [
        ([1, 2, 9], [], [([1, 2], False), ([1, 2, 3, 4], True), ([1, 2, 9], True)], 205),
        ([1, 2], [], [([1, 2], True), ([1, 2, 3, 4], True)], 204),
        (LONG, [1, 3, 5], [(LONG[:end], True) for end in (1, 3, 4, 5, 6)], 506),
    ],
)
def test_a_second_path_splits_edges(
    stored: Stored, second: list[int], ends: list[int], paths: Any, size: int
) -> None:
    """Where it parts from the first, where it ends, and where it is told to."""
    stored.insert([1, 2, 3, 4])
    assert stored.tree.size == 104
    stored.insert(second, ends)
    assert stored.list_paths() == paths
    assert stored.tree.size == size
    stored.check()


def test_a_match_says_where_it_ends(stored: Stored) -> None:
    stored.insert([1, 2, 3, 4])
    stored.insert([1, 2, 9])
    for tokens, length, whole, inside in (
        ([1, 2, 3, 5], 3, 1, True),
        ([1, 2, 3], 3, 1, True),
        ([1, 2], 2, 1, False),
        ([1, 2, 8], 2, 1, False),
        ([1], 1, 0, True),
        ([1, 2, 9, 9], 3, 2, False),
        ([7], 0, 0, False),
        ([], 0, 0, False),
    ):
        match = stored.tree.match(tuple(tokens))
        found = match.length, len(match.nodes), match.inside is not None
        assert found == (length, whole, inside), tokens


@pytest.mark.parametrize(
    ("paths", "limit", "left"),
    [
        ([[1, 2], [3, 4], [1, 2]], 102, [1, 2]),  # what was not used goes first
        ([[1, 2], [1, 2, 3]], 150, [1, 2, 3]),  # on the way only marks go
    ],
)
def test_there_is_an_order(
    stored: Stored, paths: list[list[int]], limit: int, left: list[int]
) -> None:
    for path in paths:
        stored.insert(path)
    stored.eviction.shrink(limit, set())
    assert stored.list_paths() == [(left, True)]
    stored.check()


def test_a_fork_stays_while_two_paths_need_it(stored: Stored) -> None:
    stored.insert([1, 2])
    stored.insert([1, 2, 3])
    stored.insert([1, 2, 4])
    stored.eviction.shrink(204, set())
    assert stored.list_paths() == [([1, 2], False), ([1, 2, 3], True), ([1, 2, 4], True)]
    stored.eviction.shrink(0, set())
    assert stored.list_paths() == []
    assert (stored.tree.size, stored.tree.tokens) == (0, 0)


def test_what_is_kept_can_go_later(stored: Stored) -> None:
    stored.insert([1, 2])
    stored.insert([3])
    stored.eviction.shrink(0, set(stored.tree.match((1, 2)).path))
    assert stored.list_paths() == [([1, 2], True)]
    stored.eviction.shrink(0, set())
    assert stored.list_paths() == []


def test_counters_hold_whatever_is_stored(stored: Stored) -> None:
    draw = random.Random(1)
    for _ in range(300):
        path = [draw.randrange(2) for _ in range(draw.randint(1, 12))]
        ends = sorted({draw.randint(1, len(path)) for _ in range(3)} - {len(path)})
        stored.insert(path, ends)
        if draw.random() < 0.3:
            kept = set(stored.tree.match(tuple(path)).path)
            stored.eviction.shrink(draw.choice((0, 500, 1500)), kept)
            assert stored.tree.match(tuple(path)).length == len(path)
        stored.check()
    queued = [node for _, _, node in stored.eviction.heap]
    assert len(queued) == len(set(queued)) <= len(list(stored.tree.list_nodes()))


def test_common_tokens_are_those_of_a_loop() -> None:
    draw = random.Random(2)
    for _ in range(500):
        left = [draw.randrange(2) for _ in range(draw.randint(0, 40))]
        right = left[: draw.randint(0, 40)] + [draw.randrange(2) for _ in range(5)]
        pairs = enumerate(zip(left, right, strict=False))
        parts = [place for place, (a, b) in pairs if a != b]
        due = parts[0] if parts else min(len(left), len(right))
        assert count_common(left, right) == due


class Number(int):
    """An integer all the same."""


def test_tokens_are_integers() -> None:
    assert check_tokens((1, Number(2), 1 << 70)) == [1, 2, 1 << 70]
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(ValueError, match="at place 2 is not an integer"):
            check_tokens([1, Number(2), wrong])  # type: ignore[list-item]


def test_a_long_match_among_many_takes_few_steps() -> None:
    """The tokens of stored conversations are compared in bulk, and only along one path:
    counted in comparisons, since time is not ours."""
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    stored, length = Stored(), 200
    for number in range(300):
        stored.insert([0, number, *range(1000, 1000 + length)])
    asked = [Counted(token) for token in (0, 7, *range(1000, 1000 + length))]
    compared = 0
    assert stored.tree.match((*asked, Counted(1))).length == length + 2
    assert compared < 2 * length
