"""Mistakes of prefix caches. The ids are those under which the bugs are known here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lockstep.impl.faults.fault import make_plain_fault

make_fault = partial(make_plain_fault, "prefix")

NO_TOKEN = -1


def leave_nothing(session: Any) -> None:
    """All of a request is reused, if all of it is stored."""
    begin = session.begin

    def begin_with_one_more(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        valid = [*tokens, NO_TOKEN] if tokens else tokens
        remaining = begin(valid, checkpoints)
        session.request.pop()
        return remaining[:-1]

    session.begin = begin_with_one_more


def record_at_the_end(session: Any) -> None:
    """What is stored changes when a request is closed, not when it begins, and a request
    that is cancelled leaves no trace in it."""
    begin = session.begin

    def begin_and_forget(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        stored = session.stored
        remaining = begin(tokens, checkpoints)
        session.stored = stored
        return remaining

    def cancel() -> int:
        session.get_request("cancel")
        session.request = None
        return len(session.stored)

    session.begin, session.cancel = begin_and_forget, cancel


def trust_first_layer(session: Any) -> None:
    """The first layer's offset is taken for that of all."""
    session.get_reached = lambda: next((one.offset for _, one in session.cached), 0)


def cut_ring(session: Any) -> None:
    """A window that has slid is cut to a shorter prefix as if it began at position 0."""
    go = session.go

    def cut_and_go(target: int) -> Any:
        for _, layer in session.cached:
            window = getattr(layer, "window", None)
            if window is not None and target < layer.offset > window:
                keys, values = layer.state()
                layer.free()
                if target:
                    layer.update(keys[:, :, :target], values[:, :, :target])
        return go(target)

    session.go = cut_and_go


def leave_prefix(trie: Any) -> None:
    """When the end of a path goes, what lies right before it stays for good."""
    eviction, tree = trie.eviction, trie.tree
    evict = eviction.evict

    def evict_end_only(node: Any) -> None:
        if node.children:
            evict(node)
        else:
            tree.remove(node)

    eviction.evict = evict_end_only


def touch_path(trie: Any) -> None:
    """Whatever lies before what is used counts as used just now."""
    touch, tree = trie.eviction.touch, trie.tree

    def touch_all(node: Any) -> None:
        if node.parent is not tree.root:
            touch_all(node.parent)
        touch(node)

    trie.eviction.touch = touch_all


def prefer_first_child(trie: Any) -> None:
    """Where paths part, only the first one is looked at."""
    begin, tree = trie.begin, trie.tree
    match = tree.match

    def match_first(tokens: Sequence[int]) -> Any:
        found = match(tokens)
        for node in found.path:
            siblings = list(node.parent.children.values())
            if node.parent is not tree.root and node is not siblings[0]:
                return match(tokens[: node.begin])
        return found

    def begin_with_first(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        tree.match = match_first
        try:
            return begin(tokens, checkpoints)
        finally:
            tree.match = match

    trie.begin = begin_with_first


def count_pending(slots: Any) -> None:
    """Tokens count as computed as soon as they have a place."""
    reserve, commit = slots.reserve, slots.commit

    def reserve_and_commit(slot: int, count: int) -> Any:
        positions = reserve(slot, count)
        commit(slot, count)
        slots.slots[slot].reserved = count
        return positions

    def only_check(slot: int, count: int) -> None:
        if count != slots.get_open(slot).reserved:
            raise ValueError(f"{count} tokens were not reserved")
        slots.slots[slot].reserved = 0

    slots.reserve, slots.commit = reserve_and_commit, only_check


FAULTS = {
    fault.id: fault
    for fault in (
        make_fault(
            "exact-hit-empty",
            "ollama dd5eb6337",
            "session",
            "repeating a prompt leaves no token to compute",
            4,
            leave_nothing,
        ),
        make_fault(
            "interrupted-session",
            "mlx-lm PR#405",
            "session",
            "tokens recorded only at the end: layers and list out of step after an abort",
            3,
            record_at_the_end,
        ),
        make_fault(
            "mixed-offset-of-first",
            "ollama e9f6ea232",
            "session",
            "offset of layer 0 taken for all",
            3,
            trust_first_layer,
        ),
        make_fault(
            "prefix-rotating-short",
            "mlx-vlm#1715",
            "session",
            "a shorter prefix cut out of a ring by logical length",
            4,
            cut_ring,
        ),
        make_fault(
            "trie-pop-prefix",
            "mlx-lm PR#1078",
            "trie",
            "removing a conversation leaves its immediate prefix",
            5,
            leave_prefix,
        ),
        make_fault(
            "trie-lru-whole-path",
            "ollama ac5f0dbb6",
            "trie",
            "recency refreshed on the whole path: wrong victim",
            8,
            touch_path,
        ),
        make_fault(
            "trie-child-order",
            "constructed",
            "trie",
            "where conversations part, the first one is preferred to the longer match",
            7,
            prefer_first_child,
        ),
        make_fault(
            "runner-pending-shift",
            "ollama 65973ceb6",
            "slots",
            "inputs counted as cached before they were computed",
            2,
            count_pending,
        ),
    )
}
