"""Mistakes of prefix caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.prefix.tokens import count_common

NO_TOKEN = -1


@mistake("session", 2, "ollama dd5eb6337")
def exact_hit_empty(session: Any) -> None:
    """Repeating a prompt leaves no token to compute."""
    begin = session.begin

    def begin_with_one_more(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        valid = [*tokens, NO_TOKEN] if tokens else tokens
        remaining = begin(valid, checkpoints)
        session.request.pop()
        return remaining[:-1]

    session.begin = begin_with_one_more


@mistake("session", 3, "mlx-lm PR#405")
def interrupted_session(session: Any) -> None:
    """Tokens are recorded when a request ends. After an aborted request, the layers hold
    tokens that the list does not have."""
    edit(session, "begin", "self.stored = request[:reuse]", "pass")

    def cancel() -> int:
        session.get_request("cancel")
        session.request = None
        return len(session.stored)

    session.cancel = cancel


@mistake("session", 3, "ollama e9f6ea232")
def mixed_offset_of_first(session: Any) -> None:
    """The offset of layer 0 is taken for all layers."""
    session.get_reached = lambda: next((layer.offset for _, layer in session.cached), 0)


@mistake("session", 4, "mlx-vlm#1715")
def prefix_rotating_short(session: Any) -> None:
    """A ring is cut to a shorter prefix as if its content began at position 0."""
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


@mistake("trie", 5, "mlx-lm PR#1078")
def trie_pop_prefix(trie: Any) -> None:
    """Removing a conversation leaves its immediate prefix."""
    edit(trie.eviction, "evict", "if not parent.children and", "if False and")


@mistake("trie", 8, "ollama ac5f0dbb6")
def trie_lru_whole_path(trie: Any) -> None:
    """A use counts for all nodes of the path, so the wrong node is evicted."""
    first = "if node.parent is not self.tree.root:\n        self.touch(node.parent)"
    edit(trie.eviction, "touch", "self.clock += 1", f"{first}\n    self.clock += 1")


@mistake("trie", 7)
def trie_child_order(trie: Any) -> None:
    """Where conversations diverge, the first child is chosen, not the longer match."""
    begin, tree = trie.begin, trie.tree
    match = tree.match

    def match_first(tokens: Sequence[int]) -> Any:
        hit = match(tokens)
        for node in hit.path:
            siblings = list(node.parent.children.values())
            if node.parent is not tree.root and node is not siblings[0]:
                return match(tokens[: node.begin])
        return hit

    def begin_with_first(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        tree.match = match_first
        try:
            return begin(tokens, checkpoints)
        finally:
            tree.match = match

    trie.begin = begin_with_first


@mistake("slots", 2, "ollama 65973ceb6")
def runner_pending_shift(slots: Any) -> None:
    """Tokens count as cached before they are computed."""
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


@mistake("trie", 7)
def limit_forgets_computed(trie: Any) -> None:
    """If a limit is set during a request, the tokens that the request reused are kept,
    but not the tokens that it computed."""
    original = "self.live if self.request is None else self.request"
    edit(trie, "set_limit", original, "self.live")


@mistake("trie", 5)
def cut_stays(trie: Any) -> None:
    """A request begins inside an edge, so the edge is split. The split is forgotten, so
    the edge is never merged again."""
    edit(trie.tree, "tighten", "self.cut.undo(self.layers)", "pass")


@mistake("session", 5)
def freed_without_tokens(session: Any) -> None:
    """The layers are emptied, but their tokens still count as stored."""
    edit(session, "free", "self.stored = []", "pass")


@mistake("trie", 5)
def nothing_to_store(trie: Any) -> None:
    """A request that ends before it computes a token is not stored, although the layers
    could be captured at its beginning."""
    edit(trie, "close", "if reached > 0:", "if reached > self.reused:")


@mistake("trie", 6)
def whole_edges_only(trie: Any) -> None:
    """If the layers do not hold a conversation, its last edge is not reused unless the
    whole edge matches."""
    go = trie.go

    def go_to_node(request: Sequence[int], match: Any) -> Any:
        if match.inside is not None:
            common = count_common(trie.live, request)
            most = min(match.length, max(common, match.inside.begin))
            match = replace(match, length=most)
        return go(request, match)

    trie.go = go_to_node


@mistake("trie", 6)
def refused_is_used(trie: Any) -> None:
    """A request marks a node as used before the layers move there, even if a layer
    refuses and nothing is reused."""
    find = "next(node for node in match.path if node.end >= target)"
    move = "failure = self.move("
    edit(trie, "go", move, f"self.eviction.touch({find})\n        {move}")


@mistake("trie", 2)
def checkpoints_as_given(trie: Any) -> None:
    """Checkpoints are scheduled in the given order, so a layer raises an error if they do
    not ascend."""
    begin, list_wanted = trie.begin, trie.list_wanted

    def begin_as_given(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        ordered = dict.fromkeys(checkpoints)

        def list_as_given(first: int, last: int) -> list[int]:
            wanted = list_wanted(first, last)
            requested = [offset for offset in ordered if offset in wanted]
            others_wanted = [offset for offset in wanted if offset not in requested]
            return list(merge(requested, others_wanted))

        trie.list_wanted = list_as_given
        return begin(tokens, checkpoints)

    trie.begin = begin_as_given
