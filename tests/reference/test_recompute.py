"""A second statement of what the caches mean: recompute from scratch.

Whatever happened to a cache, what follows must be as in a fresh cache that was fed with
the tokens that are left, in one piece. What is left is kept here as a plain list of tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.kv import KVCache
from reference.rotating import RotatingCache
from reference.state import StateCache

Cache = KVCache | RotatingCache | StateCache
Draw = Callable[[st.SearchStrategy[Any]], Any]

QUICK = settings(max_examples=60, deadline=None, database=None)

MAKERS: dict[str, Callable[[], Cache]] = {
    "kv": KVCache,
    "kv-chunk-3": lambda: KVCache(3),
    "rotating-1": lambda: RotatingCache(1),
    "rotating-4": lambda: RotatingCache(4),
    "rotating-4-keep-2": lambda: RotatingCache(4, 2),
    "state": StateCache,
}
every_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

WHAT = ("update", "update", "update", "trim", "rewind", "free", "snapshot", "restore")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, 6),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=16,
)


class Story:
    """A cache, and beside it the list of the tags that must be left."""

    def __init__(self, make: Callable[[], Cache]) -> None:
        self.cache = make()
        self.left: list[int] = []
        self.saved: list[tuple[Any, list[int]]] = []
        self.tag = 100

    def append(self, length: int) -> None:
        tags = list(range(self.tag, self.tag + length))
        self.tag += length
        self.cache.update(tags)
        self.left += tags

    def step(self, what: str, number: int, which: int) -> None:
        """One step. Whether a rewind is granted is the cache's to say; that it does what
        it says is checked here."""
        cache = self.cache
        if what == "update":
            self.append(max(1, number))
        elif what == "trim":
            del self.left[len(self.left) - cache.trim(number) :]
        elif what == "rewind":
            if cache.restore(None, number):
                del self.left[number:]
        elif what == "free":
            cache.free()
            self.left = []
        elif what == "snapshot":
            snapshot = cache.snapshot(number)
            if snapshot is not None:
                self.saved.append((snapshot, list(self.left)))
        elif self.saved:
            snapshot, then = self.saved[which % len(self.saved)]
            target = snapshot.end - (number if which == 3 else 0)
            if cache.restore(snapshot, target):
                self.left = self.get_restored(snapshot, then)[:target]

    def get_restored(self, snapshot: Any, then: list[int]) -> list[int]:
        """A full cache keeps what is live below the snapshot; others bring it all."""
        begin = snapshot.begin if isinstance(self.cache, KVCache) else 0
        return self.left[:begin] + then[begin:]


def tell(make: Callable[[], Cache], steps: Sequence[tuple[str, int, int]]) -> Story:
    story = Story(make)
    for step in steps:
        story.step(*step)
    return story


def feed(make: Callable[[], Cache], tags: Sequence[int]) -> Cache:
    cache = make()
    cache.update(tags)
    return cache


def see(cache: Cache, begin: int) -> list[list[tuple[int, int]]]:
    """What the queries from `begin` on see."""
    return [[*cache.visible(query)] for query in range(begin, cache.offset)]


@every_kind
@QUICK
@given(steps=STEPS, more=st.integers(1, 6))
def test_any_history_sees_what_a_fresh_cache_would(
    make: Callable[[], Cache], steps: list[tuple[str, int, int]], more: int
) -> None:
    story = tell(make, steps)
    assert story.cache.offset == len(story.left)
    assert story.cache.state() == feed(make, story.left).state()
    before = story.cache.offset
    story.append(more)
    assert see(story.cache, before) == see(feed(make, story.left), before)


@every_kind
@QUICK
@given(
    steps=STEPS,
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    ahead=st.sets(st.integers(0, 12), max_size=3),
)
def test_different_cuts_of_one_history_agree(
    make: Callable[[], Cache],
    steps: list[tuple[str, int, int]],
    lengths: list[int],
    ahead: set[int],
) -> None:
    whole, parts = tell(make, steps).cache, tell(make, steps).cache
    begin, total = whole.offset, sum(lengths)
    for cache in (whole, parts):
        cache.prepare([begin + distance for distance in sorted(ahead)])
    whole.update(range(total))
    rows, tag = [], 0
    for length in lengths:
        offset = parts.offset
        parts.update(range(tag, tag + length))
        rows += see(parts, offset)
        tag += length
    assert rows == see(whole, begin)
    assert parts.state() == whole.state()
    assert parts.take() == whole.take()


@every_kind
@QUICK
@given(steps=STEPS, ours=STEPS, theirs=STEPS)
def test_forks_do_not_see_each_other(
    make: Callable[[], Cache],
    steps: list[tuple[str, int, int]],
    ours: list[tuple[str, int, int]],
    theirs: list[tuple[str, int, int]],
) -> None:
    story, alone = tell(make, steps), tell(make, steps)
    fork = Story(make)
    fork.cache, fork.left = story.cache.clone(), list(story.left)
    fork.saved, fork.tag = list(story.saved), 10_000
    for number in range(max(len(ours), len(theirs))):
        for branch, moves in ((story, ours), (fork, theirs)):
            for move in moves[number : number + 1]:
                branch.step(*move)
    for move in ours:
        alone.step(*move)
    assert story.cache.tokens == alone.cache.tokens
    assert fork.cache.state() == feed(make, fork.left).state()


@every_kind
@QUICK
@given(steps=STEPS, away=STEPS, more=st.integers(1, 6))
def test_to_come_back_is_never_to_have_left(
    make: Callable[[], Cache],
    steps: list[tuple[str, int, int]],
    away: list[tuple[str, int, int]],
    more: int,
) -> None:
    story = tell(make, steps)
    story.append(1)
    stayed, snapshot = story.cache.clone(), story.cache.snapshot(0)
    offset = stayed.offset
    for move in away:
        story.step(*move)
    assert story.cache.restore(snapshot, offset) is True
    for cache in (story.cache, stayed):
        cache.update(range(more))
    assert see(story.cache, offset) == see(stayed, offset)
    assert story.cache.state() == stayed.state()
