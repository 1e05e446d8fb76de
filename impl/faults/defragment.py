"""Caches that tidy up, which ours never do: a batch goes to neighbouring cells, and where
no run of free ones is long enough, what the last cells hold fills the first holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import round_up
from lockstep.impl.shared.cells import Cells

Move = tuple[int, int]
"""(from, to)"""

Order = Callable[[Sequence[Move], int], Ints]
"""Of the moves and the number of cells: from which cell each gets its data."""


def keep_together(cache: Any, order: Order) -> None:
    """Allocates runs of cells, and makes them if it must. order: moves the data."""
    cells: Cells = cache.cells

    def find_free(count: int) -> Ints:
        first = find_run(cells, count)
        if first is None:
            moves = list_moves(cells)
            move_owners(cells, moves)
            cache.paste_cells(cache.copy_cells(order(moves, cells.count)))
            first = find_run(cells, count)
            assert first is not None
        return np.arange(first, first + count)

    cells.find_free = find_free  # type: ignore[method-assign]


def find_run(cells: Cells, count: int) -> int | None:
    """The first of `count` free cells in a row."""
    free = np.concatenate(([0], np.cumsum(cells.bits == 0)))
    found = np.flatnonzero(free[count:] - free[:-count] == count)
    return int(found[0]) if len(found) else None


def list_moves(cells: Cells) -> list[Move]:
    """The last cells that are held, last first, to the first free ones, first first."""
    holes, held = np.flatnonzero(cells.bits == 0), cells.list_used()[::-1]
    pairs = zip(held.tolist(), holes.tolist(), strict=False)
    return [(source, target) for source, target in pairs if source > target]


def move_owners(cells: Cells, moves: Sequence[Move]) -> None:
    """The metadata, cell by cell."""
    places = np.arange(cells.count)
    for source, target in moves:
        cells.table[:, target] = cells.table[:, source]
        cells.bits[source] = 0
        places[source] = target
    for index in cells.indexes:
        index.cells[:] = places[index.cells]
        index.ascending = False


def order_cells(moves: Sequence[Move], count: int) -> Ints:
    """The data of each cell goes where its metadata went."""
    order = np.arange(count)
    for source, target in moves:
        order[target] = source
    return order


def order_blocks(moves: Sequence[Move], count: int) -> Ints:
    """Moves between neighbours are done as one: the sources descend, the targets ascend,
    and a block is copied as it is."""
    order = np.arange(count)
    begin = 0
    for end in range(1, len(moves) + 1):
        length = end - begin
        (source, target), following = moves[begin], moves[end : end + 1]
        if following != [(source - length, target + length)]:
            first = source - length + 1
            order[target : target + length] = np.arange(first, first + length)
            begin = end
    return order


@mistake("causal", 3, "ollama, up to 53985b3c4")
def defrag_block_copy(cache: Any) -> None:
    """Metadata moves cell by cell, data in merged blocks: cells swap owners."""
    keep_together(cache, order_blocks)


@mistake("swa", 2, "ollama 4183bb057")
def defrag_range_stale(cache: Any) -> None:
    """Visible range not recomputed after defragmenting."""
    keep_together(cache, order_cells)
    cells, add = cache.cells, cache.cells.add
    shown: list[Ints] = []

    def look_up(batch: Batch, owner: int) -> Ints:
        index = cells.indexes[owner]
        low = cache.get_low(batch.get_span(owner)[0])
        found: Ints = index.cells[index.find(low) :].copy()
        return found

    def look_up_and_add(batch: Batch) -> Ints:
        before = [look_up(batch, owner) for owner in batch.owners]
        added: Ints = add(batch)
        shown[:] = [*before, added]
        return added

    def compute_columns(batch: Batch) -> tuple[int, int]:
        columns, padding = np.concatenate(shown), cache.sizes.cache_padding
        first, last = int(columns.min()), int(columns.max())
        return first // padding * padding, round_up(last + 1, padding)

    cells.add = look_up_and_add
    cache.compute_columns = compute_columns
