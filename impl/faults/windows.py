"""Mistakes of a sliding window: what the ring still has, and who sees it."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import MakeBand
from lockstep.impl.shared.memory import Arrays, Snapshot

# --- what the ring still has ------------------------------------------------------------


def drop_behind_cursor(cache: Any) -> None:
    """Of a ring that stands in its middle, only the part before the cursor is kept."""
    count_before = cache.count_before

    def count(length: int) -> int:
        if length > 1 and cache.offset > cache.window:
            return int(cache.offset % cache.window)
        return int(count_before(length))

    cache.count_before = count


def trim_anyway(cache: Any) -> None:
    """Tokens are taken back even if those before them have slid out."""
    trim = cache.trim

    def trim_any(count: int) -> int:
        trimmed = min(count, cache.offset) if count >= 0 else trim(count)
        cache.offset -= trimmed
        return int(trimmed)

    cache.trim = trim_any


def rewind_anyway(cache: Any) -> None:
    """Without a snapshot any earlier offset can be reached."""
    can_restore = cache.can_restore

    def can_rewind(snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is None:
            return bool(0 <= target <= cache.offset)
        return bool(can_restore(snapshot, target))

    cache.can_restore = can_rewind


def read_past_ring(cache: Any) -> None:
    """`state` reads as many tokens as were written, not as many as the ring has."""
    cache.state = lambda: cache.memory.read(0, cache.offset) if cache.offset else None


def return_in_slots(cache: Any) -> None:
    """`update` returns tokens in the order of slots; the mask is that of positions."""
    update = cache.update

    def update_unordered(keys: Any, values: Any) -> Arrays:
        ordered: Arrays = update(keys, values)
        width = ordered[0].shape[2]
        first = cache.offset - width
        before = -first % cache.memory.capacity  # tokens that stand before slot 0
        if not 0 < before < width:
            return ordered
        turned: Arrays = cache.memory.copy(first, cache.offset)
        for array, old in zip(turned, ordered, strict=True):
            array[:, :, : width - before] = old[:, :, before:]
            array[:, :, width - before :] = old[:, :, :before]
        return turned

    cache.update = update_unordered


def slide_late(cache: Any) -> None:
    """`>` where `>=` belongs: with exactly a window of tokens, none slides out."""
    count_before = cache.count_before

    def count(length: int) -> int:
        is_full = cache.offset == cache.window
        return int(cache.window if is_full else count_before(length))

    cache.count_before = count


# --- who sees it ------------------------------------------------------------------------


def widen_mask(cache: Any, make_band: MakeBand) -> None:
    """`<=` where `<` belongs: a row sees one token more than the window."""

    def make_mask(length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        before = cache.count_before(length)
        return make_band(length, rows, before, cache.window + 1, cache.mask)

    cache.make_mask = make_mask


def drop_decode_mask(cache: Any) -> None:
    """One token more than the window comes back, which the mask hides; but a single row
    gets no mask."""
    cache.count_before = lambda length: min(cache.offset, cache.window)


def clamp_mask(cache: Any, make_band: MakeBand) -> None:
    """The mask is as wide as if a token had slid out; for a chunk, none has."""
    count_before = cache.count_before

    def count(length: int) -> int:
        if length == 1:
            return int(count_before(length))
        return int(min(cache.offset, cache.window))

    def make_mask(length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        before = count_before(length)
        return make_band(length, rows, before, cache.window, cache.mask)

    cache.count_before, cache.make_mask = count, make_mask


def mask_by_offset(cache: Any, make_band: MakeBand) -> None:
    """The mask is made for the tokens that the window has now, one of which slides out
    before the keys come back."""

    def make_mask(length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        before = min(cache.offset, cache.window)
        return make_band(length, rows, before, cache.window, cache.mask)

    cache.make_mask = make_mask
