"""Mistakes of tries while a request is open, that we thought up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

from lockstep.impl.faults.fault import Inventor
from lockstep.impl.prefix.tokens import count_common

invent = Inventor("prefix")
FAULTS = invent.faults


@invent("begin", "silent clamp", "trie", 6)
def whole_edges_only(trie: Any) -> None:
    """Of another conversation than that of the layers only whole edges are reused."""
    go = trie.go

    def go_to_node(request: Sequence[int], match: Any) -> Any:
        if match.inside is not None:
            held = count_common(trie.live, request)
            most = min(match.length, max(held, match.inside.begin))
            match = replace(match, length=most)
        return go(request, match)

    trie.go = go_to_node


@invent("begin", "bound", "trie", 4)
def zero_is_padding(trie: Any) -> None:
    """A request is followed up to its first token 0, which is taken for padding."""
    begin, tree = trie.begin, trie.tree
    match = tree.match

    def match_before_zero(tokens: Any) -> Any:
        return match(tokens[: tokens.index(0)] if 0 in tokens else tokens)

    def begin_before_zero(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        tree.match = match_before_zero
        try:
            return begin(tokens, checkpoints)
        finally:
            tree.match = match

    trie.begin = begin_before_zero


@invent("begin", "stale metadata", "trie", 6)
def uncaptured_where_it_begins(trie: Any) -> None:
    """A capture that is wanted exactly where a request begins to compute is taken for one
    that was made before."""
    list_wanted = trie.list_wanted

    def list_behind(first: int, last: int) -> list[int]:
        return [offset for offset in list_wanted(first, last) if offset != trie.reused]

    trie.list_wanted = list_behind


@invent("feed", "stale metadata", "trie", 4)
def captured_as_asked(trie: Any) -> None:
    """Captures are scheduled when a request begins, and none among the tokens that are
    generated later."""
    extend, schedule = trie.extend, trie.schedule

    def extend_only(tokens: Sequence[int]) -> None:
        trie.schedule = lambda first: None
        try:
            extend(tokens)
        finally:
            trie.schedule = schedule

    trie.extend = extend_only


@invent("feed", "bound", "trie", 7)
def parted_by_the_first(trie: Any) -> None:
    """Nothing is captured where the first generated token leaves what is stored, only
    where a later one does."""
    extend = trie.extend

    def extend_behind(tokens: Sequence[int]) -> None:
        end = len(trie.get_request("extend"))
        was_wanted = end in trie.wanted
        extend(tokens)
        if not was_wanted:
            trie.wanted.discard(end)

    trie.extend = extend_behind


@invent("feed", "order", "trie", 4)
def scheduled_from_the_end(trie: Any) -> None:
    """When tokens are generated before the request is computed, captures are scheduled
    anew from its end on, and those before are lost."""
    extend, schedule = trie.extend, trie.schedule

    def extend_and_lose(tokens: Sequence[int]) -> None:
        end = len(trie.get_request("extend"))
        trie.schedule = lambda first: schedule(end)
        try:
            extend(tokens)
        finally:
            trie.schedule = schedule

    trie.extend = extend_and_lose


@invent("feed", "silent clamp", "trie", 3)
def sixteen_captures(trie: Any) -> None:
    """At most 16 captures are made of one request; those further on are left out."""
    list_wanted = trie.list_wanted
    trie.list_wanted = lambda first, last: list_wanted(first, last)[:16]


@invent("refuse", "error class", "trie", 5)
def failure_not_caught(trie: Any) -> None:
    """Only a layer that answers no is taken for one that refuses; what it raises goes to
    whoever asked."""
    move = trie.move

    def move_or_raise(target: int, common: int, restore: Callable[..., Any]) -> Any:
        raised: list[Exception] = []

        def restore_and_note(number: int, layer: Any) -> Any:
            try:
                return restore(number, layer)
            except Exception as error:
                raised.append(error)
                raise

        reason = move(target, common, restore_and_note)
        if raised:
            raise raised[0]
        return reason

    trie.move = move_or_raise


@invent("refuse", "evicted too late", "trie", 6)
def refused_is_used(trie: Any) -> None:
    """What a request is about to reuse counts as used before the layers go there, even if
    one refuses and nothing is reused."""
    go, move = trie.go, trie.move

    def go_to_used(request: Sequence[int], match: Any) -> Any:
        def use_and_move(target: int, *how: Any) -> Any:
            trie.eviction.touch(next(one for one in match.path if one.end >= target))
            return move(target, *how)

        trie.move = use_and_move
        return go(request, match)

    trie.go = go_to_used


@invent("checkpoint", "order", "trie", 7)
def checkpoint_instead(trie: Any) -> None:
    """Checkpoints are noted after the place where the request leaves what is stored, and
    take its place."""
    begin = trie.begin

    def begin_and_replace(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        remaining = begin(tokens, checkpoints)
        trie.wanted = set(checkpoints) or trie.wanted
        return remaining

    trie.begin = begin_and_replace


@invent("checkpoint", "stale metadata", "trie", 6)
def checkpoint_stays(trie: Any) -> None:
    """The checkpoints of a request hold for those after it, too."""
    begin, all_ever = trie.begin, set[int]()

    def begin_with_all(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        remaining = begin(tokens, [*all_ever, *checkpoints])
        all_ever.update(checkpoints)
        return remaining

    trie.begin = begin_with_all


@invent("checkpoint", "error class", "trie", 2)
def checkpoints_as_given(trie: Any) -> None:
    """Checkpoints are scheduled in the order in which they were given; if that does not
    ascend, a layer raises an error."""
    begin, list_wanted = trie.begin, trie.list_wanted

    def begin_as_given(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        given = dict.fromkeys(checkpoints)

        def list_as_given(first: int, last: int) -> list[int]:
            wanted = list_wanted(first, last)
            asked = [offset for offset in given if offset in wanted]
            others = [offset for offset in wanted if offset not in asked]
            return list(merge(asked, others))

        trie.list_wanted = list_as_given
        return begin(tokens, checkpoints)

    trie.begin = begin_as_given
