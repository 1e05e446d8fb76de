"""Mistakes of layer caches that we thought up: when tokens come, or are taken back.

`layer_reads` has those with what is read, cloned or freed, `layer_snapshots` those with
snapshots, and `layer_captures` those with captures.

One nature does not occur: a cache of this contract has one layer, so nothing can get
into the wrong one. The wrong sequence is that of another cache: the original of a clone,
or one of its clones.
"""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import Inventor
from lockstep.impl.shared.memory import Arrays

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


@invent("trim", "evicted too early", "kv", 4)
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


@invent("trim", "silent clamp", "state", 1)
def negative_trim_is_none(cache: Any) -> None:
    """Nothing can be taken back anyway, so that the number is not looked at."""
    cache.trim = lambda count: 0


@invent("trim", "order", "rotating", 2)
def wrapped_trim_unchecked(cache: Any) -> None:
    """Once tokens have slid out, none is taken back before the number is checked."""
    trim = cache.trim
    cache.trim = lambda count: 0 if cache.offset > cache.window else trim(count)


@invent("trim", "error class", "kv", 1)
def negative_trim_asserted(cache: Any) -> None:
    """That the number is not negative is asserted, as if only the cache could be to
    blame."""
    trim = cache.trim

    def trim_or_assert(count: int) -> int:
        assert count >= 0, "count is negative"
        return int(trim(count))

    cache.trim = trim_or_assert


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
