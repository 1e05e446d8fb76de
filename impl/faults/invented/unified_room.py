"""Invented mistakes in a pass: what leaves for it, and for whom there is room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import round_up
from lockstep.impl.shared.cells import Cells
from lockstep.impl.shared.errors import CacheFullError
from lockstep.impl.shared.track import Track


def slide(cache: Any, find_low: Callable[[Ints, Track], int]) -> None:
    """Evicts by `find_low(positions of the sequence in the batch, its track)`."""
    cells = cache.cells

    def evict(batch: Batch, memory: int) -> None:
        for owner, track in enumerate(cells.tracks):
            if len(track):
                own = batch.positions[batch.sequences == owner]
                cells.drop(owner, 0, int(find_low(own, track)) - memory)

    cells.evict = evict


@invent("forward", "evicted too early", "swa", 2)
def slides_by_first_row(cache: Any) -> None:
    """The first row of a sequence is taken for its lowest when tokens are evicted."""
    slide(cache, lambda own, track: own[0] if len(own) else track.last + 1)


@invent("forward", "evicted too late", "swa-memory", 3)
def idle_keeps_one_more(cache: Any) -> None:
    """A sequence that is not in the batch is taken to go on at its last position, not
    behind it."""
    slide(cache, lambda own, track: own.min() if len(own) else track.last)


@invent("forward", "wrong sequence", "swa", 3)
def eviction_takes_shared(cache: Any) -> None:
    """Tokens that leave a window leave all sequences that share one of them, however far
    those have come."""
    cells, evict = cache.cells, cache.cells.evict

    def evict_from_all(batch: Batch, memory: int) -> None:
        for owner in batch.owners:
            low = int(batch.positions[batch.get_rows(owner)].min()) - memory
            track = cells.tracks[owner]
            gone = track.cells[: track.find(low)]
            holders = int(np.bitwise_or.reduce(cells.bits[gone], initial=0))
            for other in range(len(cells.tracks)):
                if holders >> other & 1:
                    cells.drop(other, 0, low)
        evict(batch, memory)

    cells.evict = evict_from_all


@invent("forward", "evicted too early", "swa", 3)
def reserving_slides(cache: Any) -> None:
    """A pass that only reserves evicts, as any other."""
    reserve = cache.reserve

    def evict_and_reserve(batch: Batch) -> None:
        cache.evict(batch)
        reserve(batch)

    cache.reserve = evict_and_reserve


@invent("copy_prefix", "stale metadata", "causal", 3)
def shared_counts_for_each(cache: Any) -> None:
    """A cell counts once for each sequence that shares it: free ones are not found."""
    cells = cache.cells

    def check(rows: int) -> None:
        free = cells.count - sum(map(len, cells.tracks))
        if rows > free:
            raise CacheFullError(f"{rows} tokens, and room for {free}")

    cells.check = check


@invent("open", "evicted too early", "swa-memory", 2)
def no_room_for_stop_token(cache: Any) -> None:
    """A memory no larger than the window stays so, whatever the number of sequences."""
    sizes = cache.sizes
    if cache.memory is not None and cache.memory > sizes.memory:
        cache.memory = sizes.memory
        count = sizes.sequences * sizes.memory + sizes.batch
        cache.cells = type(cache.cells)(
            round_up(count, sizes.cache_padding), sizes.sequences
        )


@invent("open", "silent clamp", "swa-memory", 1)
def room_is_rounded_down(cache: Any) -> None:
    """The number of cells is rounded down to a multiple of the padding, unless that is
    none."""
    sizes = cache.sizes
    count = replace(sizes, cache_padding=1).count_cells()
    count = count // sizes.cache_padding * sizes.cache_padding
    cache.cells = type(cache.cells)(count or cache.cells.count, sizes.sequences)


POOLS: dict[tuple[int, int], Cells] = {}


@invent("open", "aliasing", "swa-memory", 3)
def pool_of_same_sizes(cache: Any) -> None:
    """Caches of the same sizes get one and the same table of cells, which is cleared as
    each of them is opened."""
    key = cache.cells.count, cache.sizes.sequences
    pool = POOLS.setdefault(key, cache.cells)
    vars(pool).update(vars(cache.cells))
    cache.cells = pool
