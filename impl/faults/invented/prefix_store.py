"""Mistakes in what a trie stores when a request ends, that we thought up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.impl.faults.fault import Inventor

invent = Inventor("prefix")
FAULTS = invent.faults


@invent("close", "aliasing", "trie", 5)
def parts_share_capture(trie: Any) -> None:
    """Where paths part inside an edge, the new node gets the capture at the end of the
    edge, too, as if it had been made there."""
    split = trie.tree.split_snapshot

    def split_and_share(node: Any, number: int, layer: Any, end: int) -> Any:
        upper, lower = split(node, number, layer, end)
        return (upper, lower) if layer.can_split else (lower, lower)

    trie.tree.split_snapshot = split_and_share


@invent("close", "order", "trie", 5)
def end_used_first(trie: Any) -> None:
    """The end of a request counts as used before what was captured on the way to it."""
    insert = trie.tree.insert
    trie.tree.insert = lambda path, ends: insert(path, ends)[::-1]


@invent("close", "stale metadata", "trie", 6)
def captured_once(trie: Any) -> None:
    """A node at which some layers were captured, because a pass broke off, gets no
    captures of the others when a later request comes by."""
    take = trie.take_captures
    trie.take_captures = lambda node: {} if trie.tree.is_captured(node) else take(node)


@invent("close", "bound", "trie", 5)
def cut_to_the_end(trie: Any) -> None:
    """Of an edge inside which a request began, the layers are thought to have read all,
    however far they have read it."""
    loosen = trie.tree.loosen

    def loosen_whole(node: Any, at: int) -> None:
        loosen(node, at)
        cut = trie.tree.cut
        if cut is not None:
            move = cut.move
            cut.move = lambda end, layers: move(node.end, layers)

    trie.tree.loosen = loosen_whole


@invent("cancel", "evicted too late", "trie", 5)
def uncomputed_spared(trie: Any) -> None:
    """When a request is cancelled, the limit spares all that it asked for."""

    def cancel() -> int:
        request, keep_limit = tuple(trie.get_request("cancel")), trie.keep_limit
        trie.keep_limit = lambda live: keep_limit(request)
        try:
            stored: int = trie.close()
        finally:
            trie.keep_limit = keep_limit
        return stored

    trie.cancel = cancel


@invent("cancel", "order", "trie", 6)
def limit_before_store(trie: Any) -> None:
    """When a request is cancelled, the limit is kept before what was computed is stored,
    not after it."""

    def cancel() -> int:
        request, limit = trie.get_request("cancel"), trie.limit
        trie.keep_limit(tuple(request[: trie.get_reached()]))
        trie.limit = None
        try:
            stored: int = trie.close()
        finally:
            trie.limit = limit
        return stored

    trie.cancel = cancel


@invent("cancel", "bound", "trie", 5)
def nothing_to_store(trie: Any) -> None:
    """A request that is cancelled before anything was computed leaves no trace where it
    began, although the layers stand there and can be captured."""

    def cancel() -> int:
        store = trie.store
        if trie.get_reached() <= trie.reused:
            trie.store = lambda path: None
        try:
            stored: int = trie.close()
        finally:
            trie.store = store
        return stored

    trie.cancel = cancel


@invent("break", "missing rollback", "trie", 3)
def ahead_put_aside(trie: Any) -> None:
    """What the layers that ran ahead have read is put aside, too, and never closed."""
    append = trie.tree.append

    def append_and_keep(node: Any, path: Any, ends: Sequence[int]) -> Any:
        made = append(node, path, ends)
        for _, layer in trie.tree.layers:
            if made and layer.can_split:
                layer.snapshot(made[-1].end)
        return made

    trie.tree.append = append_and_keep
