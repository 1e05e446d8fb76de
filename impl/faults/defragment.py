"""Variants of our caches that defragment their cells; our caches never do this.

A batch goes to consecutive cells. If no run of free cells is long enough, the content of
the last cells is moved to the first holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.batch import Ints, PassRows
from lockstep.impl.shared.causal import Pass, round_up
from lockstep.impl.shared.cells import Cells
from lockstep.impl.shared.mask_line import Sight

Move = tuple[int, int]
"""(from, to)"""

Order = Callable[[Sequence[Move], int], Ints]
"""(moves, number of cells) → for each cell, the one that its data comes from."""


def keep_together(cache: Any, order: Order) -> None:
    """Allocates runs of cells; defragments if there is none. `order` moves the data."""
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
    """Returns the first of `count` consecutive free cells; None if there are no such
    cells."""
    free = np.concatenate(([0], np.cumsum(cells.bits == 0)))
    starts = np.flatnonzero(free[count:] - free[:-count] == count)
    return int(starts[0]) if len(starts) else None


def list_moves(cells: Cells) -> list[Move]:
    """Returns moves from the last used cells, descending, to the first free ones."""
    holes, used = np.flatnonzero(cells.bits == 0), cells.list_used()[::-1]
    pairs = zip(used.tolist(), holes.tolist(), strict=False)
    return [(source, target) for source, target in pairs if source > target]


def move_owners(cells: Cells, moves: Sequence[Move]) -> None:
    """Moves the metadata, cell by cell."""
    targets = np.arange(cells.count)
    for source, target in moves:
        cells.table[:, target] = cells.table[:, source]
        cells.bits[source] = 0
        targets[source] = target
    for index in cells.indexes:
        index.cells[:] = targets[index.cells]
        index.ascending = False


def order_cells(moves: Sequence[Move], count: int) -> Ints:
    """Moves the data of each cell to where its metadata went."""
    order = np.arange(count)
    for source, target in moves:
        order[target] = source
    return order


def order_blocks(moves: Sequence[Move], count: int) -> Ints:
    """Moves the data of adjacent cells as one block.

    In such moves the sources descend and the targets ascend, but a block keeps its order.
    """
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
    """Metadata is moved cell by cell, but data in merged blocks, so cells get the data of
    other cells."""
    keep_together(cache, order_blocks)


@mistake("swa", 2, "ollama 4183bb057")
def defrag_range_stale(cache: Any) -> None:
    """The visible range is not recomputed after defragmenting."""
    keep_together(cache, order_cells)
    cells, add, make_mask = cache.cells, cache.cells.add, cache.make_mask
    shown: list[Ints] = []

    def look_up(batch: PassRows, owner: int) -> Ints:
        low = cache.get_low(batch.get_span(owner)[0])
        starts: Ints = cells.list_behind(owner, low).copy()
        return starts

    def look_up_and_add(batch: PassRows) -> Ints:
        wanted = [look_up(batch, owner) for owner in batch.owners]
        added: Ints = add(batch)
        shown[:] = [*wanted, added]
        return added

    def compute_columns(_: Sight) -> tuple[int, int]:
        columns, padding = np.concatenate(shown), cache.sizes.cache_padding
        first, last = int(columns.min()), int(columns.max())
        return first // padding * padding, round_up(last + 1, padding)

    def cut_mask(current: Pass) -> Any:
        if current.sight is None:
            return make_mask(current)
        whole = make_mask(current._replace(begin=0, end=cells.count))
        return whole[:, current.begin : current.end]

    cells.add = look_up_and_add
    cache.compute_columns, cache.make_mask = compute_columns, cut_mask
