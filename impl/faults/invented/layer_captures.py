"""Mistakes of layer caches that we thought up: with captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.impl.faults.invented.layer import invent
from lockstep.impl.shared.memory import Snapshot

Taken = list[Snapshot | None]

# --- prepare ----------------------------------------------------------------------------


@invent("prepare", "silent clamp", "kv", 2)
def prepare_skips_what_is_behind(cache: Any) -> None:
    """Offsets behind the cache are left out without a word."""
    prepare = cache.prepare
    cache.prepare = lambda offsets: prepare([at for at in offsets if at >= cache.offset])


@invent("prepare", "missing rollback", "rotating", 3)
def refused_prepare_replaces(cache: Any) -> None:
    """The schedule is replaced before the old one is found not to be taken yet."""
    prepare, captures = cache.prepare, cache.captures

    def replace(offsets: Sequence[int]) -> None:
        if captures.boundaries:
            first = [cache.offset, *offsets]
            captures.boundaries = dict(zip(offsets, first, strict=False))
        prepare(offsets)

    cache.prepare = replace


@invent("prepare", "aliasing", "rotating", 2)
def schedule_is_list_of_caller(cache: Any) -> None:
    """The offsets stay in the list that they came in, and the caller uses it again."""
    prepare, take, captures = cache.prepare, cache.take, cache.captures
    cache.offsets = []

    def keep(offsets: Sequence[int]) -> None:
        prepare(offsets)
        cache.offsets = offsets

    def take_listed() -> Taken:
        offsets = cache.offsets if captures.boundaries else []
        taken = {snapshot.end: snapshot for snapshot in take() if snapshot}
        return [taken.get(at) for at in offsets]

    cache.prepare, cache.take = keep, take_listed


@invent("prepare", "stale metadata", "state", 4)
def first_capture_from_zero(cache: Any) -> None:
    """The first capture begins at 0, where the cache stood when it was made."""
    prepare, captures = cache.prepare, cache.captures

    def prepare_from_zero(offsets: Sequence[int]) -> None:
        prepare(offsets)
        if offsets and offsets[0] > cache.offset:
            captures.boundaries[offsets[0]] = 0

    cache.prepare = prepare_from_zero


# --- take -------------------------------------------------------------------------------


@invent("take", "order", "kv", 3)
def unreached_taken_last(cache: Any) -> None:
    """What was captured is returned first, and None for the other offsets behind it."""
    take = cache.take
    cache.take = lambda: sorted(take(), key=lambda snapshot: snapshot is None)


@invent("take", "stale metadata", "kv", 4)
def taken_captures_stay(cache: Any) -> None:
    """The schedule is cleared, but not what was captured: it is there when the same
    offset is scheduled again."""
    take, captures = cache.take, cache.captures

    def take_and_keep() -> Taken:
        captured = captures.captured
        taken: Taken = take()
        captures.captured = captured
        return taken

    cache.take = take_and_keep


@invent("take", "evicted too late", "state", 3)
def unreached_stay_scheduled(cache: Any) -> None:
    """Offsets that were not reached yet stay in the schedule."""
    take, captures = cache.take, cache.captures

    def take_reached() -> Taken:
        ahead = captures.boundaries
        taken: Taken = take()
        captures.boundaries = {at: ahead[at] for at in ahead if at > cache.offset}
        return taken

    cache.take = take_reached


@invent("take", "bound", "rotating", 6)
def capture_begins_with_chunk(cache: Any) -> None:
    """The window of a capture goes back to the begin of the chunk, and no further."""
    captures, get_snapshot = cache.captures, cache.get_snapshot
    reach = captures.reach

    def reach_in_chunk(before: int, after: int, take: Callable[..., Snapshot]) -> None:
        def take_chunk(begin: int, end: int) -> Snapshot:
            snapshot: Snapshot = get_snapshot(begin, end)
            snapshot.first = max(snapshot.first, before)
            return snapshot

        reach(before, after, take_chunk)

    captures.reach = reach_in_chunk
