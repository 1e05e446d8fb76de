"""A second statement of what sessions and tries mean: recompute from scratch, and keep
the conversations in a tree, as the reference does not.

Whatever happened before, after each begin every layer must hold what a fresh one holds
that was fed with the tokens reused, and these must be as many as what is stored allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_book import get_tags, make_layers, read, spell

from lockstep.reference.session import Session
from lockstep.reference.trie import Trie

THOROUGH = settings(max_examples=80, deadline=None, database=None)

LAYERS = (
    "kv",
    "state",
    "rotating:1",
    "rotating:3",
    "kv state",
    "rotating:2 kv -",
    "state rotating:3 kv",
    "- rotating:2 rotating:4 state",
    "kv kv",
    "-",
)
every_mix = pytest.mark.parametrize("specs", LAYERS)


# --- the books --------------------------------------------------------------------------


class Desk:
    """The layers of an open request, of which only the numbers are known.

    windows: how many tokens a layer can go back from its beginning on: all (kv), those
    of its window, or none (state). offsets: how many tokens each has read.
    """

    def __init__(self, specs: str) -> None:
        self.numbers = [n for n, spec in enumerate(specs.split()) if spec != "-"]
        kinds = [specs.split()[number] for number in self.numbers]
        self.windows = [
            inf if kind == "kv" else int(kind.partition(":")[2] or 0) for kind in kinds
        ]
        self.states = [kind == "state" for kind in kinds]
        self.offsets = [0] * len(kinds)
        self.request, self.reused, self.computed = "", 0, 0

    def can_rewind(self, layer: int, length: int) -> bool:
        offset = self.offsets[layer]
        return length == offset or length < offset <= self.windows[layer]

    def open(self, request: str, reused: int) -> int:
        self.request, self.reused, self.computed = request, reused, reused
        self.offsets = [reused] * len(self.offsets)
        return reused

    def extend(self, word: str) -> None:
        self.request += word

    def feed(self, count: int, layers: int | None = None) -> None:
        self.computed += count
        for layer, number in enumerate(self.numbers):
            if layers is None or number < layers:
                self.offsets[layer] = self.computed

    def get_reached(self) -> str:
        return self.request[: min(self.offsets, default=0)]


class SessionDesk(Desk):
    """One conversation, and what was stored of it."""

    stored = ""

    def begin(
        self, request: str, checkpoints: Sequence[int], refusing: Sequence[int]
    ) -> int:
        reuse = count_same(request, self.stored)
        if reuse == len(request):
            reuse -= 1
        for layer, number in enumerate(self.numbers):
            stands = self.offsets[layer] == reuse
            if not stands and (number in refusing or not self.can_rewind(layer, reuse)):
                return self.forget(request)
        self.stored = request[:reuse]
        return self.open(request, reuse)

    def forget(self, request: str) -> int:
        self.stored = ""
        return self.open(request, 0)

    def close(self) -> int:
        self.stored = self.get_reached() or self.stored
        return len(self.stored)


class Node:
    """The end of an edge, and what was captured there."""

    def __init__(self, edge: str, parent: Node | None) -> None:
        self.edge, self.parent = edge, parent
        self.children: dict[str, Node] = {}
        self.captured: set[int] = set()
        self.used = 0

    @property
    def word(self) -> str:
        return self.parent.word + self.edge if self.parent else ""

    def walk(self) -> Iterator[Node]:
        for child in self.children.values():
            yield child
            yield from child.walk()

    def hang(self, child: Node) -> None:
        child.parent = self
        self.children[child.edge[0]] = child


class Tree(Desk):
    """Many conversations, in a tree. `bytes` is counted along, never anew."""

    def __init__(
        self, specs: str, limit: float = inf, interval: int | None = None
    ) -> None:
        super().__init__(specs)
        self.limit, self.interval = limit, interval
        self.root, self.live, self.bytes, self.clock = Node("", None), "", 0, 0
        self.cuts = sum(window == inf for window in self.windows)

    def descend(self, word: str) -> tuple[Node, int]:
        """The last node that the word reaches or enters the edge of, and how many tokens
        it agrees with."""
        node, agreed = self.root, 0
        while child := node.children.get(word[agreed : agreed + 1]):
            step = count_same(child.edge, word[agreed:])
            node, agreed = child, agreed + step
            if step < len(child.edge):
                break
        return node, agreed

    def begin(
        self, request: str, checkpoints: Sequence[int], refusing: Sequence[int]
    ) -> int:
        self.checkpoints = set(checkpoints)
        agreed = self.descend(request)[1]
        self.left = {agreed} if 0 < agreed < len(request) else set()
        reuse = min(agreed, len(request) - 1)
        while not self.can_reach(request[:reuse]):
            reuse -= 1
        for layer, number in enumerate(self.numbers):
            stands = self.offsets[layer] == reuse and self.live.startswith(
                request[:reuse]
            )
            if number in refusing and not stands:
                reuse = 0
        if reuse:
            self.touch(self.descend(request[:reuse])[0])
        self.live = request[:reuse]
        return self.open(request, reuse)

    def can_reach(self, word: str) -> bool:
        node, _ = self.descend(word)
        here = node.captured if node.word == word else set()
        return not word or all(
            self.windows[layer] == inf
            or layer in here
            or (self.live.startswith(word) and self.can_rewind(layer, len(word)))
            for layer in range(len(self.offsets))
        )

    def extend(self, word: str) -> None:
        before = len(self.request)
        super().extend(word)
        agreed = self.descend(self.request)[1]
        if before <= agreed < len(self.request):
            self.left.add(agreed)

    def close(self) -> int:
        word = self.live = self.get_reached()
        ends = range(max(1, self.reused), len(word) + 1)
        for end in ends:
            if end in self.checkpoints | self.left or end % (self.interval or 99) == 0:
                self.capture(word[:end], range(len(self.offsets)))
        if word:
            stand = [n for n, offset in enumerate(self.offsets) if offset == len(word)]
            self.capture(word, stand)
        self.request = ""
        self.shrink()
        return len(word)

    def capture(self, word: str, layers: Sequence[int]) -> None:
        node = self.insert(word)
        for layer in layers:
            if self.windows[layer] != inf and layer not in node.captured:
                node.captured.add(layer)
                self.bytes += self.weigh(layer, node)
        self.touch(node)

    def insert(self, word: str) -> Node:
        node, agreed = self.descend(word)
        if len(node.word) > agreed:
            node = self.split(node, agreed)
        if agreed == len(word):
            return node
        leaf = Node(word[agreed:], node)
        node.hang(leaf)
        self.bytes += len(leaf.edge) * self.cuts
        return leaf

    def split(self, node: Node, at: int) -> Node:
        assert node.parent is not None
        into = at - len(node.parent.word)
        upper = Node(node.edge[:into], node.parent)
        node.parent.hang(upper)
        node.edge = node.edge[into:]
        upper.hang(node)
        return upper

    def weigh(self, layer: int, node: Node) -> int:
        if self.states[layer]:
            return 100
        return 10 * int(min(self.windows[layer], len(node.word)))

    def touch(self, node: Node) -> None:
        self.clock += 1
        node.used = self.clock

    def set_limit(self, limit: float) -> None:
        self.limit = limit
        self.shrink()

    def get_kept(self) -> list[Node]:
        """The way to where the layers stand, with the edge that they left or stand
        inside."""
        kept, (node, _) = [], self.descend(self.get_live())
        while node.parent:
            kept.append(node)
            node = node.parent
        return kept

    def get_live(self) -> str:
        return self.get_reached() if self.request else self.live

    def shrink(self) -> None:
        while self.bytes > self.limit:
            kept = self.get_kept()
            loose = [
                node
                for node in self.root.walk()
                if node not in kept and (node.captured or not node.children)
            ]
            if not loose:
                return
            self.drop(min(loose, key=lambda node: node.used))

    def drop(self, node: Node) -> None:
        assert node.parent is not None
        self.bytes -= sum(self.weigh(layer, node) for layer in node.captured)
        node.captured = set()
        if not node.children:
            self.bytes -= len(node.edge) * self.cuts
            del node.parent.children[node.edge[0]]
        elif len(node.children) == 1:
            [child] = node.children.values()
            child.edge = node.edge + child.edge
            node.parent.hang(child)

    def list_points(self) -> dict[str, set[int]]:
        return {
            node.word: {self.numbers[layer] for layer in node.captured}
            for node in self.root.walk()
        }


def count_same(left: str, right: str) -> int:
    return next(
        (at for at in range(len(left)) if left[at : at + 1] != right[at : at + 1]),
        len(left),
    )


# --- what happens to both ---------------------------------------------------------------

Request = tuple[str, list[int], list[int], int, str, int, int]
"""tokens; checkpoints; who refuses; how many tokens are computed at once, if any; what is
generated; after how many layers a last pass breaks off; what the limit becomes."""

WORDS = st.text("ab", min_size=1, max_size=7)
NEVER = st.just([])
REQUESTS = st.lists(
    st.tuples(
        WORDS,
        st.one_of(NEVER, st.lists(st.integers(1, 8), max_size=2)),
        st.one_of(NEVER, NEVER, NEVER, st.lists(st.integers(0, 3), max_size=2)),
        st.sampled_from((9, 9, 9, 9, 3, 2, 1, 0)),
        st.text("ab", max_size=3),
        st.sampled_from((9, 9, 9, 9, 0, 1, 2)),
        st.sampled_from((9, 9, 9, 9, 0, 1, 2, 3)),
    ),
    min_size=3,
    max_size=14,
)
LIMITS = st.sampled_from((0, 4, 9, 14, 60, 120, 250, 420, 700))


class Story:
    """A session or a trie, and its book, through the same requests."""

    def __init__(
        self, specs: str, cache: Session | Trie, desk: SessionDesk | Tree
    ) -> None:
        self.specs, self.cache, self.desk = specs, cache, desk
        self.closed = ""

    def begin(self, request: Request) -> str:
        """Begins in both; returns the reused tokens."""
        word, checkpoints, refusing = request[:3]
        more = {} if isinstance(self.cache, Session) else {"checkpoints": checkpoints}
        left = read(self.cache.begin(spell(word), refusing=refusing, **more))
        assert left
        assert word.endswith(left)
        reused = word[: len(word) - len(left)]
        assert len(reused) == self.desk.begin(word, checkpoints, refusing)
        for layer, fresh in zip(self.cache.layers, make_layers(self.specs), strict=True):
            if layer is not None and fresh is not None:
                fresh.cache.update(get_tags(spell(reused)))
                assert layer.cache.state() == fresh.cache.state()
                assert layer.offset == len(reused)
        return reused

    def tell(self, request: Request) -> str:
        """Runs a whole request; returns the reused tokens."""
        reused = self.begin(request)
        self.finish(request, reused)
        return reused

    def finish(self, request: Request, reused: str) -> None:
        word, _, _, most, said, broken, limit = request
        left = len(word) - len(reused)
        self.feed(min(most, left))
        if isinstance(self.cache, Trie) and limit < 9:
            self.set_limit(self.cache.count_bytes() * limit // 3)
        if most >= left:
            for letter in said:
                self.extend(letter)
                self.feed(1)
        if broken < 9:
            self.extend("b")
            self.feed(min(2, max(0, left - most) + 1), broken)
        self.closed = self.desk.get_reached()
        assert self.cache.close() == self.desk.close()

    def feed(self, count: int, layers: int | None = None) -> None:
        self.cache.feed(count, layers)
        self.desk.feed(count, layers)
        assert [layer.offset for layer in self.cache.cached] == self.desk.offsets

    def extend(self, word: str) -> None:
        self.cache.extend(spell(word))
        self.desk.extend(word)

    def set_limit(self, limit: int) -> None:
        assert isinstance(self.cache, Trie)
        assert isinstance(self.desk, Tree)
        self.cache.set_limit(limit)
        self.desk.set_limit(limit)
        check_store(self.cache, self.desk)


def check_store(trie: Trie, tree: Tree) -> None:
    """The same is stored, and counted; what two paths share ends at a point; and if it
    is more than the limit, nothing can go."""
    points = {read(path): point.captured for path, point in trie.points.items()}
    assert points == tree.list_points()
    assert trie.count_bytes() == tree.bytes == weigh(tree, points)
    assert trie.count_tokens() == len(list_beginnings(points))
    for one in points:
        for other in points:
            assert one[: count_same(one, other)] in {"", *points}
    assert tree.bytes <= tree.limit or not list_loose(tree, points)


def list_beginnings(words: Iterable[str]) -> set[str]:
    return {word[:end] for word in words for end in range(1, len(word) + 1)}


def weigh(tree: Tree, points: Mapping[str, set[int]]) -> int:
    """Bytes without any edges: a beginning is one token, wherever it is stored."""
    total = len(list_beginnings(points)) * tree.cuts
    for word, captured in points.items():
        for number in captured:
            window = tree.windows[tree.numbers.index(number)]
            total += 10 * int(min(window, len(word))) if window else 100
    return total


def list_loose(tree: Tree, points: Mapping[str, set[int]]) -> list[str]:
    """The points that could go: none whose own tokens, those behind the point before,
    begin as the live ones go on."""
    live = tree.get_live()
    kept = set()
    for word in points:
        before = [len(other) for other in points if is_behind(word, other)]
        if count_same(word, live) > max(before, default=0):
            kept.add(word)
    ends = {word for word in points if not any(is_behind(o, word) for o in points)}
    return [
        word for word in points if word not in kept and (points[word] or word in ends)
    ]


def is_behind(other: str, word: str) -> bool:
    return other != word and other.startswith(word)


# --- the properties ---------------------------------------------------------------------


@every_mix
@THOROUGH
@given(requests=REQUESTS)
def test_a_session_reuses_what_its_layers_can_go_back_to(
    specs: str, requests: Sequence[Request]
) -> None:
    story = Story(specs, Session(make_layers(specs), get_tags), SessionDesk(specs))
    for request in requests:
        story.tell(request)


def open_trie(specs: str, limit: int | None = None, interval: int | None = None) -> Story:
    trie = Trie(make_layers(specs), get_tags, limit, interval)
    return Story(specs, trie, Tree(specs, inf if limit is None else limit, interval))


@every_mix
@THOROUGH
@given(
    requests=REQUESTS,
    limit=st.none() | LIMITS,
    interval=st.sampled_from((None, None, 1, 2, 3)),
)
def test_a_trie_stores_and_reuses_what_a_tree_does(
    specs: str, requests: Sequence[Request], limit: int | None, interval: int | None
) -> None:
    story = open_trie(specs, limit, interval)
    for request in requests:
        story.tell(request)
        check_store(story.cache, story.desk)  # type: ignore[arg-type]


@THOROUGH
@given(requests=REQUESTS, limit=LIMITS)
def test_a_limit_never_makes_for_more_reuse(
    requests: Sequence[Request], limit: int
) -> None:
    wide, narrow = open_trie("kv"), open_trie("kv", limit)
    for word, checkpoints, _, most, said, broken, other in requests:
        full = (word, checkpoints, [], most, said, broken)
        whole = wide.begin((*full, 9))
        part = narrow.begin((*full, other))
        assert whole.startswith(part)
        wide.finish((*full, 9), whole)
        narrow.finish((*full, other), part)
