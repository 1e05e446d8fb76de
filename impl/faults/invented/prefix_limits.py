"""Mistakes in what a trie counts and lets go, that we thought up."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

from lockstep.impl.faults.fault import Inventor
from lockstep.impl.prefix.trie import check_limit

invent = Inventor("prefix")
FAULTS = invent.faults


@invent("count", "wrong dtype", "trie", 4)
def bytes_of_the_first(trie: Any) -> None:
    """The bytes of both arrays of a layer are counted in the dtype of the first; a state
    has two, if the model is not in float32."""
    tree = trie.tree

    def count(snapshot: Any) -> int:
        arrays = snapshot.read()
        return int(sum(prod(array.shape) for array in arrays) * arrays[0].itemsize)

    def weigh(node: Any) -> None:
        size = sum(count(one) for one in node.snapshots if one is not None)
        tree.size += size - node.size
        node.size = size

    tree.weigh = weigh


@invent("count", "stale metadata", "trie", 5)
def cut_edge_lighter(trie: Any) -> None:
    """While a request that began inside an edge is open, the rest of the edge does not
    count."""
    tree = trie.tree
    loosen = tree.loosen

    def loosen_and_weigh(node: Any, at: int) -> None:
        loosen(node, at)
        tree.weigh(node)

    tree.loosen = loosen_and_weigh


@invent("limit", "bound", "trie", 5)
def one_more_goes(trie: Any) -> None:
    """Where something has to go, so much goes that less is stored than may be."""
    shrink = trie.eviction.shrink
    trie.eviction.shrink = lambda limit, kept: shrink(limit - 1, kept)


@invent("limit", "silent clamp", "trie", 5)
def zero_is_no_limit(trie: Any) -> None:
    """A limit of 0 bytes is none."""
    keep_limit = trie.keep_limit
    trie.keep_limit = lambda live: keep_limit(live) if trie.limit else None


@invent("limit", "stale metadata", "trie", 6)
def limit_not_lifted(trie: Any) -> None:
    """Once there was a limit, None does not lift it."""
    set_limit = trie.set_limit
    trie.set_limit = lambda limit: set_limit(trie.limit if limit is None else limit)


@invent("limit", "evicted too late", "trie", 6)
def limit_waits(trie: Any) -> None:
    """A limit that comes while a request is open is kept once that is closed."""
    set_limit = trie.set_limit

    def set_limit_only(limit: int | None) -> None:
        if trie.request is None:
            set_limit(limit)
        else:
            check_limit(limit)
            trie.limit = limit

    trie.set_limit = set_limit_only


@invent("limit", "evicted too early", "trie", 7)
def limit_forgets_computed(trie: Any) -> None:
    """A limit that comes while a request is open spares what that reused, but not what it
    computed since."""

    def set_limit(limit: int | None) -> None:
        check_limit(limit)
        trie.limit = limit
        trie.keep_limit(trie.live)

    trie.set_limit = set_limit


@invent("limit", "missing rollback", "trie", 5)
def cut_stays(trie: Any) -> None:
    """An edge that was cut, because a request began inside it, is forgotten to be cut
    before it is put together again."""

    def tighten() -> None:
        trie.tree.cut = None

    trie.tree.tighten = tighten


@invent("limit", "order", "trie", 8)
def first_in_first_out(trie: Any) -> None:
    """What was stored first goes first, however lately it was used."""
    eviction = trie.eviction
    touch = eviction.touch

    def touch_once(node: Any) -> None:
        if node.used:
            eviction.push(node)
        else:
            touch(node)

    eviction.touch = touch_once


@invent("limit", "evicted too late", "trie", 5)
def spared_for_good(trie: Any) -> None:
    """What must not go now, because the layers stand on it, is lost to the queue, and
    never goes unless it is used again."""
    eviction = trie.eviction
    shrink, push = eviction.shrink, eviction.push

    def shrink_and_lose(limit: int, kept: Collection[Any]) -> None:
        eviction.push = lambda node: None if node in kept else push(node)
        try:
            shrink(limit, kept)
        finally:
            eviction.push = push

    eviction.shrink = shrink_and_lose


@invent("limit", "wrong layer", "trie", 11)
def uncaptured_in_the_first(trie: Any) -> None:
    """Where paths part and what was captured has to go, only the first layer's goes."""
    tree = trie.tree

    def uncapture(node: Any) -> None:
        number, layer = next(one for one in tree.layers if not one[1].can_split)
        tree.drop(node, number, layer)
        tree.weigh(node)

    tree.uncapture = uncapture


@invent("free", "stale metadata", "trie", 6)
def queue_not_freed(trie: Any) -> None:
    """What was freed still stands in the queue of what goes first, and takes its bytes
    off the count when it comes up."""
    trie.eviction.clear = lambda: None


@invent("free", "evicted too late", "trie", 6)
def limit_freed(trie: Any) -> None:
    """The limit is forgotten along with what is stored."""
    free = trie.free

    def free_all() -> None:
        free()
        trie.limit = None

    trie.free = free_all
