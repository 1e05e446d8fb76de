"""Mistakes with memory: whose it is, and when it is given back."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.memory import Arrays, Snapshot


@mistake("kv", 1)
def inputs_kept(cache: Any) -> None:
    """The arrays of an update are kept, and copied only when they are in the way."""
    copy_later(cache)


@mistake("rotating", 1)
def window_of_inputs(cache: Any) -> None:
    """The arrays of the first update are the window until the next one."""
    copy_later(cache)


def copy_later(cache: Any) -> None:
    """Makes a cache keep what it is given last, where a read asks for just that."""
    memory = cache.memory
    write, read, copy = memory.write, memory.read, memory.copy
    clear, clone = memory.clear, cache.clone
    kept: list[tuple[int, int, Arrays]] = []

    def copy_kept() -> None:
        while kept:
            write(*kept.pop())

    def keep(begin: int, end: int, arrays: Arrays) -> None:
        copy_kept()
        kept.append((begin, end, arrays))

    def read_kept(begin: int, end: int) -> Arrays:
        if kept and kept[0][:2] == (begin, end):
            keys, values = kept[0][2]
            return keys[:, :, : end - begin], values[:, :, : end - begin]
        copy_kept()
        arrays: Arrays = read(begin, end)
        return arrays

    def copy_written(begin: int, end: int) -> Arrays:
        copy_kept()
        arrays: Arrays = copy(begin, end)
        return arrays

    def clear_all() -> None:
        kept.clear()
        clear()

    def clone_copied() -> Any:
        copy_kept()
        return clone()

    memory.write, memory.read, memory.copy = keep, read_kept, copy_written
    memory.clear, cache.clone = clear_all, clone_copied


@mistake("rotating", 3)
def ring_never_wraps(cache: Any) -> None:
    """The ring has a slot for every position so far; none is used again."""
    reserve = cache.memory.reserve

    def reserve_all(like: Arrays, begin: int, end: int, needed: int) -> None:
        reserve(like, begin, end, begin + needed)

    cache.memory.reserve = reserve_all


@mistake("kv", 3)
def copies_never_released(cache: Any) -> None:
    """A snapshot that was copied before it is closed stays in a list of the cache."""
    kept: list[Snapshot] = []

    def close_uncopied(snapshot: Snapshot) -> None:
        if snapshot.memory is None:
            kept.append(snapshot)
        else:
            snapshot.close()

    cache.close = close_uncopied
