"""Mistakes of layer caches that we thought up: with tokens. Those with snapshots are in
`layer_snapshots`, those with captures in `layer_captures`.

One nature does not occur: a cache of this contract has one layer, so nothing can get
into the wrong one. The wrong sequence is that of another cache: the original of a clone,
or one of its clones.
"""

from __future__ import annotations

from typing import Any

from impl.faults.fault import Inventor
from impl.shared.memory import Arrays

invent = Inventor("layer")
FAULTS = invent.faults


def pass_through_bfloat16(array: Any) -> Any:
    """What is left of the numbers that the harness writes, all of them below 1."""
    return (array * 256).round() / 256


# --- update -----------------------------------------------------------------------------


@invent("update", "stale metadata", "rotating", 2)
def mask_kept_by_shape(cache: Any) -> None:
    """A mask is used again for the same rows and columns; but with padding, chunks of
    different lengths have these."""
    make_mask = cache.make_mask
    masks: dict[tuple[int, int], Any] = {}

    def make_once(length: int, rows: int) -> Any:
        shape = rows, cache.count_before(length) + length
        if shape not in masks:
            masks[shape] = make_mask(length, rows)
        return masks[shape]

    cache.make_mask = make_once


@invent("update", "wrong dtype", "kv", 2)
def growth_through_bfloat16(cache: Any) -> None:
    """Memory that grows takes its tokens along by way of bfloat16."""
    memory = cache.memory
    reserve = memory.reserve

    def reserve_and_round(like: Arrays, used: int, needed: int) -> None:
        before = memory.capacity
        reserve(like, used, needed)
        if used and memory.capacity > before:
            keys, values = map(pass_through_bfloat16, memory.read(0, used))
            memory.write(0, used, (keys, values))

    memory.reserve = reserve_and_round


@invent("update", "evicted too late", "rotating", 1)
def prompt_masked_in_full(cache: Any) -> None:
    """The first chunk gets the mask of a full cache, however long it is."""
    make_mask = cache.make_mask

    def make_wide(length: int, rows: int) -> Any:
        window, cache.window = cache.window, cache.window + length * (cache.offset == 0)
        mask = make_mask(length, rows)
        cache.window = window
        return mask

    cache.make_mask = make_wide


@invent("update", "order", "state", 5)
def captured_before_written(cache: Any) -> None:
    """A capture is taken when its tokens arrive, before the state has read them."""

    def write(conv: Any, delta: Any, length: int) -> None:
        cache.advance(length)
        cache.memory.secure_all()
        cache.store(conv, delta)

    cache.write = write


@invent("update", "aliasing", "kv", 1)
def keys_scaled_in_place(cache: Any) -> None:
    """K is scaled for attention in the array that the caller gave, once it is stored."""
    update = cache.update

    def update_and_scale(keys: Any, values: Any) -> Arrays:
        arrays: Arrays = update(keys, values)
        keys[:] = keys * 2
        return arrays

    cache.update = update_and_scale


# --- view, state, size ------------------------------------------------------------------


@invent("view", "aliasing", "kv", 5)
def views_share_scratch(cache: Any) -> None:
    """A view is gathered in the arrays of the last view of as many tokens, of whichever
    clone."""
    scratch = vars(cache).setdefault("scratch", {})
    view, clone = cache.view, cache.clone

    def gather() -> Arrays | None:
        arrays = view()
        if arrays is None:
            return None
        copied = cache.memory.copy(0, cache.offset)
        gathered: Arrays = scratch.setdefault(cache.offset, copied)
        for array, new in zip(gathered, arrays, strict=True):
            array[:] = new
        return gathered

    def share() -> Any:
        other = clone()
        other.scratch = scratch
        return other

    cache.view, cache.clone = gather, share


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
def size_in_a_byte(cache: Any) -> None:
    """The size stays at 255, however many tokens come."""
    cache.size = lambda: min(cache.offset, 255)


@invent("size", "evicted too late", "rotating", 2)
def size_of_ring(cache: Any) -> None:
    """The size counts tokens that are still in the ring, but no longer in the window."""
    cache.size = lambda: min(cache.offset, cache.memory.capacity)


# --- trim -------------------------------------------------------------------------------


@invent("trim", "missing rollback", "rotating", 3)
def short_trim_ends_captures(cache: Any) -> None:
    """A trim drops the schedule of captures, and does not bring it back when fewer tokens
    can be taken back than it was asked for."""
    trim = cache.trim

    def trim_or_drop(count: int) -> int:
        trimmed = int(trim(count))
        if trimmed < count:
            cache.captures.drop()
        return trimmed

    cache.trim = trim_or_drop


@invent("trim", "evicted too early", "kv", 5)
def trim_returns_memory(cache: Any) -> None:
    """When no token is left, memory is given back that snapshots still name."""
    trim, memory = cache.trim, cache.memory

    def trim_and_clear(count: int) -> int:
        trimmed = int(trim(count))
        if trimmed and not cache.offset:
            memory.named.clear()
            memory.clear()
        return trimmed

    cache.trim = trim_and_clear


@invent("trim", "silent clamp", "kv", 3)
def trim_undoes_one_update(cache: Any) -> None:
    """No more is taken back than the last update brought."""
    update, trim = cache.update, cache.trim
    cache.last = cache.offset

    def update_and_note(keys: Any, values: Any) -> Arrays:
        cache.last = keys.shape[2]
        arrays: Arrays = update(keys, values)
        return arrays

    cache.update = update_and_note
    cache.trim = lambda count: trim(min(count, cache.last))


@invent("trim", "aliasing", "rotating", 5)
def trim_wipes_snapshots(cache: Any) -> None:
    """What is taken back is wiped, also where a snapshot names it that has no copy."""
    trim, memory = cache.trim, cache.memory

    def trim_and_wipe(count: int) -> int:
        end, trimmed = cache.offset, int(trim(count))
        if trimmed:
            keys, values = memory.read(cache.offset, end)
            memory.write(cache.offset, end, (keys * 0, values * 0))
        return trimmed

    cache.trim = trim_and_wipe


@invent("trim", "bound", "rotating", 2)
def full_window_not_trimmed(cache: Any) -> None:
    """`>=` where `>` belongs: a window that is just full counts as one that has slid."""
    trim = cache.trim
    cache.trim = lambda count: 0 if cache.offset >= cache.window else trim(count)


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


@invent("free", "evicted too early", "kv", 4)
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
