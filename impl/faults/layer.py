"""Mistakes of layer caches. The ids are those under which the bugs are known here."""

from __future__ import annotations

from typing import Any

from impl.faults.fault import Fault, MakeBand


def drop_behind_cursor(cache: Any, make_band: MakeBand) -> None:
    """Of a ring that stands in its middle, only the part before the cursor is kept."""
    count_before = cache.count_before

    def count(length: int) -> int:
        if length > 1 and cache.offset > cache.window:
            return int(cache.offset % cache.window)
        return int(count_before(length))

    cache.count_before = count


def widen_mask(cache: Any, make_band: MakeBand) -> None:
    """`<=` where `<` belongs: a row sees one token more than the window."""

    def make_mask(length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        before = cache.count_before(length)
        return make_band(length, rows, before, cache.window + 1, cache.mask)

    cache.make_mask = make_mask


def never_copy(cache: Any, make_band: MakeBand) -> None:
    """A lazy snapshot is not copied before what it names is overwritten."""
    cache.memory.secure = lambda begin, end: None


def keep_offset(cache: Any, make_band: MakeBand) -> None:
    """`free` gives the memory back and forgets to reset the offset."""
    free = cache.free

    def free_memory() -> None:
        offset = cache.offset
        free()
        cache.offset = offset

    cache.free = free_memory


def share_memory(cache: Any, make_band: MakeBand) -> None:
    """A clone works in the memory of the original."""
    clone = cache.clone

    def share() -> Any:
        other = clone()
        other.memory = cache.memory
        return other

    cache.clone = share


FAULTS = {
    fault.id: fault
    for fault in (
        Fault(
            "rotating-chunk-mid-ring",
            "ollama 06ae6367b (#15591), mlx-examples#1000",
            "rotating",
            "several tokens appended to a ring that stands mid-rotation drop the slots"
            " behind the cursor",
            2,
            drop_behind_cursor,
        ),
        Fault(
            "window-off-by-one",
            "mlx-lm PR#390",
            "rotating",
            "`<=` for `<` in the window mask: one token too wide",
            1,
            widen_mask,
        ),
        Fault(
            "snapshot-alias",
            "ollama 144893850",
            "kv",
            "lazy snapshot overwritten by an append after a rewind",
            6,
            never_copy,
        ),
        Fault(
            "free-keeps-offset",
            "ollama, x/mlxrunner/cache of 2026-02",
            "kv",
            "free drops the buffer, keeps the offset",
            2,
            keep_offset,
        ),
        Fault(
            "clone-shares",
            "mlx-lm PR#976",
            "kv",
            "clone shares storage with the original",
            3,
            share_memory,
        ),
    )
}
