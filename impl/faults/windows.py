"""Mistakes of a sliding window: the content of the ring, and the mask."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.memory import Arrays

# --- the content of the ring ------------------------------------------------------------


@mistake("rotating", 2, "ollama 06ae6367b (#15591), mlx-examples#1000")
def rotating_chunk_mid_ring(cache: Any) -> None:
    """Appending several tokens to a wrapped ring drops the slots after the cursor."""
    is_chunk = "length > 1 and self.offset > self.window"
    wrong = f"self.offset % self.window if {is_chunk} else min(self.offset"
    edit(cache, "count_before", "min(self.offset", wrong)


@mistake("rotating", 2, "ollama 96e36c0d9, mlx-lm#1776")
def rotating_trim_after_wrap(cache: Any) -> None:
    """A trim after a wrap changes counters and nothing else, so stale tokens count as
    valid."""
    edit(cache, "trim", "0 if self.get_first(self.offset) else ", "")


@mistake("rotating", 2, "ollama d1151e18a")
def rotating_restore_after_wrap(cache: Any) -> None:
    """A rewind below the window is accepted."""
    wrong = "(end if snapshot is None else self.window)"
    edit(cache, "can_restore", "self.window", wrong)


@mistake("rotating", 3, "ollama 55fa80d07")
def rotating_state_past_buffer(cache: Any) -> None:
    """The state is sliced to the offset, not to the length of the buffer."""
    cache.state = lambda: cache.memory.read(0, cache.offset) if cache.offset else None


@mistake("rotating", 2, "ollama 2bbe2405f")
def rotating_order(cache: Any) -> None:
    """The ring is returned in slot order under a positional mask."""
    update = cache.update

    def update_unordered(keys: Any, values: Any) -> Arrays:
        ordered: Arrays = update(keys, values)
        width = ordered[0].shape[2]
        first = cache.offset - width
        ring = cache.memory.columns
        turned_by = -first % ring.capacity  # number of tokens before slot 0
        if not 0 < turned_by < width:
            return ordered
        turned: Arrays = cache.memory.copy(first, cache.offset)
        for array, old in zip(turned, ordered, strict=True):
            array[:, :, : width - turned_by] = old[:, :, turned_by:]
            array[:, :, width - turned_by :] = old[:, :, :turned_by]
        return turned

    cache.update = update_unordered


@mistake("rotating", 2, "transformers#37574")
def window_roll_at_exactly_w(cache: Any) -> None:
    """A comparison uses `>` instead of `>=`, so a window that is exactly full slides one
    step late."""
    wrong = "self.window - (self.offset != self.window)"
    edit(cache, "count_before", "self.window - 1", wrong)


# --- the mask ---------------------------------------------------------------------------


@mistake("rotating", 1, "mlx-lm PR#390")
def window_off_by_one(cache: Any) -> None:
    """The window mask tests `<=` instead of `<`: one token too wide."""
    edit(cache, "make_mask", "self.window, self.mask", "self.window + 1, self.mask")


@mistake("rotating", 2, "mlx-lm PR#843")
def decode_mask_dropped(cache: Any) -> None:
    """A one-token step on a full cache with a window returns no mask."""
    cache.count_before = lambda length: min(cache.offset, cache.window)


@mistake("rotating", 2, "mlxcel PR#418")
def clamped_mask_width(cache: Any) -> None:
    """The mask has the width of a trimmed cache, but the keys are not trimmed."""
    count_before = cache.count_before

    def count(length: int) -> int:
        if length == 1:
            return int(count_before(length))
        return int(min(cache.offset, cache.window))

    def make_mask(length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        old = count_before(length)
        return cache.make_band(length, rows, old, cache.window, cache.mask)

    cache.count_before, cache.make_mask = count, make_mask


@mistake("rotating", 2, "mlx-swift-lm PR#39")
def mask_from_stale_offset(cache: Any) -> None:
    """The mask is one column wider than the keys once the window is full."""
    edit(cache, "make_mask", "self.count_before(length)", "min(self.offset, self.window)")
