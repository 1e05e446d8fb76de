"""Mistakes of slots over one cache of several sequences."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import mistake


@mistake("slots", 6)
def refused_copy_keeps_tokens(slots: Any) -> None:
    """After a refused copy the target slot still counts as holding its old tokens,
    although some of the caches have dropped them."""
    fork = slots.fork

    def fork_or_keep(source: int, target: int, tokens: list[int]) -> None:
        stored = slots.slots[target].tokens
        fork(source, target, tokens)
        slots.slots[target].tokens = slots.slots[target].tokens or stored

    slots.fork = fork_or_keep


@mistake("slots", 4)
def empty_slot_not_cut(slots: Any) -> None:
    """A slot without tokens is not emptied, although a refused copy may have left some in
    the cache."""
    go = slots.go

    def go_unless_empty(number: int, request: list[int]) -> Any:
        stored = slots.slots[number].tokens
        return go(number, request) if stored else (0, "nothing is stored")

    slots.go = go_unless_empty


@mistake("slots", 4)
def discarded_before_checked(slots: Any) -> None:
    """The middle of a full slot is removed before the number of tokens to compute is
    checked."""
    reserve = slots.reserve

    def discard_and_reserve(number: int, count: int) -> range:
        slot = slots.get_open(number)
        fits = 0 < count <= slots.context - slots.keep
        if fits and len(slot.tokens) + count > slots.context:
            slots.discard(number, count)
        positions: range = reserve(number, count)
        return positions

    slots.reserve = discard_and_reserve


@mistake("slots", 2)
def reserves_what_fits(slots: Any) -> None:
    """If a pass has more tokens than fit at once, the tokens that fit are reserved, but
    the call should be refused."""
    reserve = slots.reserve

    def reserve_some(number: int, count: int) -> range:
        remaining = len(slots.get_open(number).remaining)
        most = slots.context - slots.keep
        positions: range = reserve(number, most if most < count <= remaining else count)
        return positions

    slots.reserve = reserve_some


@mistake("slots", 3)
def committed_twice(slots: Any) -> None:
    """A reservation stays after its commit and can be committed again, for tokens that
    were never computed."""
    commit = slots.commit

    def commit_and_keep(number: int, count: int) -> None:
        commit(number, count)
        slots.slots[number].reserved = count

    slots.commit = commit_and_keep
