"""Chunked attention, and mistakes in it.

A query sees only tokens of its own chunk of positions. An update returns at most one
chunk of older tokens; earlier tokens are trimmed from the front.
"""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import Form, MakeBand, mistake
from lockstep.impl.shared.memory import Arrays

CHUNK = 4


def build_chunked(cache: Any, make_band: MakeBand) -> Any:
    """Builds a full cache with chunks of 4 positions.

    The cache gets two functions. `count_kept()` returns how many older tokens the next
    update returns. `count_seen(position)` returns how many tokens a query at this
    position sees, including itself.
    """
    update, clone = cache.update, cache.clone

    def make_mask(length: int, rows: int) -> Any:
        old = cache.count_kept()
        mask = make_band(length, rows, old, None, cache.mask)
        for row in range(min(length, CHUNK)):
            seen = cache.count_seen(cache.offset + row)
            alike = slice(row, length, CHUNK)  # the same offset in later chunks
            mask[alike] = make_band(length, rows, old, seen, cache.mask)[alike]
        return mask

    def update_and_trim(keys: Any, values: Any) -> Arrays:
        first = cache.offset - cache.count_kept()
        keys, values = update(keys, values)
        return keys[:, :, first:], values[:, :, first:]

    cache.count_kept = lambda: min(cache.offset, CHUNK)
    cache.count_seen = lambda position: position % CHUNK + 1
    cache.make_mask, cache.update = make_mask, update_and_trim
    cache.clone = lambda: build_chunked(clone(), make_band)
    return cache


CHUNKED = Form("chunked", "kv", build_chunked, {"chunk": (CHUNK,)})


@mistake("kv", 2, "mlx-lm#80, PR#1673", form=CHUNKED)
def chunk_front_trim(cache: Any) -> None:
    """The front trim is compared with the padded buffer width."""

    def count() -> int:
        trimmed = max(0, cache.memory.columns.capacity - CHUNK)
        return int(max(0, cache.offset - trimmed))

    cache.count_kept = count


@mistake("kv", 1, "transformers PR#37414", form=CHUNKED)
def chunk_boundary(cache: Any) -> None:
    """The chunk start is off by one at the first position of a chunk."""
    cache.count_seen = lambda position: (position - 1) % CHUNK + 2
