"""Mistakes of layer caches that we thought up: when they are read, cloned or freed."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.invented.layer import invent
from lockstep.impl.shared.memory import Arrays

# --- view, state, size ------------------------------------------------------------------


@invent("view", "stale metadata", "kv", 4)
def view_kept_until_update(cache: Any) -> None:
    """A view is kept for whoever asks again, until an update; to trim or restore the
    cache does not end it."""
    view, update = cache.view, cache.update
    kept: list[Arrays | None] = []

    def view_once() -> Arrays | None:
        if not kept:
            kept.append(view())
        return kept[0]

    def update_and_forget(keys: Any, values: Any) -> Arrays:
        kept.clear()
        arrays: Arrays = update(keys, values)
        return arrays

    cache.view, cache.update = view_once, update_and_forget


@invent("view", "evicted too early", "rotating", 2)
def view_for_next_token(cache: Any) -> None:
    """A view of a full window leaves out the token that the next one will push out."""
    view = cache.view

    def view_rest() -> Arrays | None:
        if cache.offset < cache.window:
            return view()  # type: ignore[no-any-return]
        first = cache.get_first(cache.offset) + 1
        return cache.memory.read(first, cache.offset)  # type: ignore[no-any-return]

    cache.view = view_rest


@invent("state", "bound", "rotating", 3)
def state_ends_with_ring(cache: Any) -> None:
    """The state is read up to the end of the ring, and not on from its begin."""

    def state() -> Arrays | None:
        if not cache.offset:
            return None
        first = cache.get_first(cache.offset)
        fits = cache.memory.capacity - first % cache.memory.capacity
        arrays: Arrays = cache.memory.read(first, min(cache.offset, first + fits))
        return arrays

    cache.state = state


@invent("state", "stale metadata", "state", 5)
def state_kept_by_offset(cache: Any) -> None:
    """The state is kept for whoever asks again at the same offset, even after other
    tokens."""
    kept: dict[int, Arrays] = {}

    def state() -> Arrays:
        if cache.offset not in kept:
            kept[cache.offset] = cache.memory.copy(0, cache.offset)
        return kept[cache.offset]

    cache.state = state


@invent("size", "silent clamp", "kv", 2)
def size_within_one_step(cache: Any) -> None:
    """The size stays at one growth step, however many tokens come."""
    cache.size = lambda: min(cache.offset, cache.memory.step)


@invent("size", "evicted too late", "rotating", 2)
def size_of_ring(cache: Any) -> None:
    """The size counts tokens that are still in the ring, but no longer in the window."""
    cache.size = lambda: min(cache.offset, cache.memory.capacity)


# --- clone, free ------------------------------------------------------------------------


@invent("clone", "wrong sequence", "rotating", 3)
def clone_counts_for_original(cache: Any) -> None:
    """How many old tokens come along, a clone asks the cache that it was cloned from."""
    clone = cache.clone

    def clone_and_bind() -> Any:
        other = clone()
        other.count_before = cache.count_before
        return other

    cache.clone = clone_and_bind


@invent("clone", "aliasing", "kv", 3)
def clone_shares_schedule(cache: Any) -> None:
    """Original and clone have one schedule of captures."""
    clone = cache.clone

    def clone_with_schedule() -> Any:
        other = clone()
        other.captures = cache.captures
        return other

    cache.clone = clone_with_schedule


@invent("clone", "aliasing", "state", 2)
def clone_shares_convolution(cache: Any) -> None:
    """A clone copies the running state, but reads the convolution inputs of the
    original."""
    clone = cache.clone

    def clone_half() -> Any:
        other = clone()
        read = other.memory.read
        other.memory.read = lambda *ends: (cache.memory.read(*ends)[0], read(*ends)[1])
        return other

    cache.clone = clone_half


@invent("free", "evicted too early", "kv", 3)
def free_closes_snapshots(cache: Any) -> None:
    """With the memory, the snapshots go that were not copied yet."""
    free = cache.free

    def free_all() -> None:
        for snapshot in list(cache.memory.named):
            snapshot.close()
        free()

    cache.free = free_all


@invent("free", "stale metadata", "state", 3)
def free_keeps_schedule(cache: Any) -> None:
    """A freed cache goes on with the captures that the tokens before were to have."""

    def free() -> None:
        cache.memory.secure_all()
        cache.memory.clear()
        cache.offset = 0

    cache.free = free
