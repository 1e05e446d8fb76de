"""Mistakes that we thought up in what prefix caches must refuse: sizes that none can
have, and what is asked of a slot at the wrong time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.impl.faults.fault import Inventor, Open
from lockstep.impl.shared.errors import NotSupportedError

invent = Inventor("prefix")
FAULTS = invent.faults


@invent.opening("order", "trie", 4)
def emptied_before_checked(open_cache: Open) -> Open:
    """Opening a trie empties the layers, and only then finds that the interval cannot be;
    they are those of another trie."""

    def empty_and_open(config: Mapping[str, Any]) -> Any:
        for layer in config["caches"]:
            if layer is not None:
                layer.free()
        return open_cache(config)

    return empty_and_open


@invent.opening("silent clamp", "trie", 1)
def interval_from_below(open_cache: Open) -> Open:
    """An interval of 0 is none; below that it is refused."""

    def open_without(config: Mapping[str, Any]) -> Any:
        return open_cache({**config, "interval": config["interval"] or None})

    return open_without


@invent.opening("bound", "slots", 1)
def all_may_stay(open_cache: Open) -> Open:
    """As many tokens may stay as there are in a slot: then none is free to go."""

    def open_full(config: Mapping[str, Any]) -> Any:
        is_full = config["keep"] == config["context"] > 0
        return open_cache({**config, "keep": config["keep"] - is_full})

    return open_full


@invent.opening("error class", "slots", 1)
def too_many_not_supported(open_cache: Open) -> Open:
    """More tokens that stay than there are in a slot are not supported, and no wrong
    number."""

    def open_or_refuse(config: Mapping[str, Any]) -> Any:
        if config["keep"] > config["context"]:
            raise NotSupportedError("so many tokens cannot stay")
        return open_cache(config)

    return open_or_refuse


@invent("reserve", "order", "slots", 4)
def discarded_before_checked(slots: Any) -> None:
    """The middle of a full slot goes before it is found that there is nothing to
    compute."""
    reserve = slots.reserve

    def discard_and_reserve(number: int, count: int) -> range:
        slot = slots.get_open(number)
        fits = 0 < count <= slots.context - slots.keep
        if fits and len(slot.tokens) + count > slots.context:
            slots.discard(number, count)
        positions: range = reserve(number, count)
        return positions

    slots.reserve = discard_and_reserve


@invent("reserve", "silent clamp", "slots", 2)
def reserves_what_fits(slots: Any) -> None:
    """Where more tokens are asked for than fit at once, as many as do are reserved."""
    reserve = slots.reserve

    def reserve_some(number: int, count: int) -> range:
        left = len(slots.get_open(number).remaining)
        most = slots.context - slots.keep
        positions: range = reserve(number, most if most < count <= left else count)
        return positions

    slots.reserve = reserve_some


@invent("reserve", "wrong sequence", "slots", 2)
def slots_from_the_end(slots: Any) -> None:
    """Slot -1 is the last one, as lists in Python have it."""
    get_slot = slots.get_slot
    count = len(slots.slots)
    slots.get_slot = lambda number: get_slot(number + count if number == -1 else number)


@invent("commit", "stale metadata", "slots", 3)
def committed_twice(slots: Any) -> None:
    """What was reserved still is once it is committed, and can be committed again, of
    tokens that nobody computed."""
    commit = slots.commit

    def commit_and_keep(number: int, count: int) -> None:
        commit(number, count)
        slots.slots[number].reserved = count

    slots.commit = commit_and_keep


@invent("commit", "missing rollback", "slots", 3)
def refused_commit_counts(slots: Any) -> None:
    """The tokens are moved to those that are computed before it is found that they were
    not reserved."""
    commit = slots.commit

    def move_and_commit(number: int, count: int) -> None:
        slot = slots.get_open(number)
        if 0 < count != slot.reserved:
            slot.tokens += slot.remaining[:count]
            del slot.remaining[:count]
        commit(number, count)

    slots.commit = move_and_commit


@invent("commit", "silent clamp", "slots", 2)
def commits_what_is_reserved(slots: Any) -> None:
    """Of more tokens than were reserved, those that were are committed."""
    commit = slots.commit

    def commit_some(number: int, count: int) -> None:
        commit(number, min(count, slots.get_open(number).reserved))

    slots.commit = commit_some
