"""The tree without layers of a framework: edges, sizes, and what goes first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lockstep.impl.prefix.eviction import Eviction
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

    def check(self) -> None:
        nodes = list(self.tree.list_nodes())
        cut = self.tree.cut.rest.values() if self.tree.cut else ()
        sizes = [node.count_bytes() for node in nodes] + [one.get_size() for one in cut]
        assert self.tree.size == sum(sizes)
        assert self.tree.tokens == sum(len(node.tokens) for node in nodes)
        for node in nodes:
            assert node.parent is not None
            assert node.parent.children[node.tokens[0]] is node
            assert node.begin == node.parent.end
            piece: Any = node.snapshots[0]
            assert (piece.begin, piece.end) == (node.begin, node.end)


def test_counters_hold_whatever_is_stored() -> None:
    stored, draw = Stored(), random.Random(1)
    for _ in range(300):
        path = [draw.randrange(2) for _ in range(draw.randint(1, 12))]
        ends = sorted({draw.randint(1, len(path)) for _ in range(3)} - {len(path)})
        stored.insert(path, ends)
        if draw.random() < 0.3:
            kept = set(stored.tree.match(tuple(path)).path)
            stored.eviction.shrink(draw.choice((0, 500, 1500)), kept)
            assert stored.tree.match(tuple(path)).length == len(path)
        stored.check()
    queued = [node for _, node in stored.eviction.heap]
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
