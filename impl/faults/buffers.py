"""Mistakes of a cache that keeps every token: what is written, taken back, given back."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.memory import Arrays


def keep_offset(cache: Any) -> None:
    """`free` gives the memory back and forgets to reset the offset."""
    free = cache.free

    def free_memory() -> None:
        offset = cache.offset
        free()
        cache.offset = offset

    cache.free = free_memory


def share_memory(cache: Any) -> None:
    """A clone works in the memory of the original."""
    clone = cache.clone

    def share() -> Any:
        other = clone()
        other.memory = cache.memory
        return other

    cache.clone = share


def read_to_end(cache: Any) -> None:
    """0 for the end of a slice means that there is none: all of the buffer is read."""

    def state() -> Arrays | None:
        end = cache.offset or cache.memory.capacity
        return cache.memory.read(0, end) if end else None

    cache.state = state


def crop_from_behind(cache: Any) -> None:
    """What remains is a slice up to offset - count, which below 0 counts from behind."""
    trim = cache.trim

    def trim_slice(count: int) -> int:
        before = cache.offset
        trim(count)
        cache.offset = len(range(before)[: before - count])
        return int(before - cache.offset)

    cache.trim = trim_slice


def grow_late(cache: Any) -> None:
    """`>` where `>=` belongs: one token more than there is room for is no reason to grow
    yet, and goes nowhere."""
    memory = cache.memory
    reserve, write = memory.reserve, memory.write

    def reserve_late(like: Arrays, used: int, needed: int) -> None:
        is_late = needed - 1 == memory.capacity > 0
        reserve(like, used, needed - 1 if is_late else needed)

    def write_inside(begin: int, end: int, arrays: Arrays) -> None:
        keys, values = arrays
        room = min(end, memory.capacity) - begin
        if room:
            write(begin, begin + room, (keys[:, :, :room], values[:, :, :room]))

    memory.reserve, memory.write = reserve_late, write_inside
