"""Mistakes with positions of three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.axes import UNIT, get_offsets, pack
from lockstep.impl.shared.batch import Ints


@mistake("causal", 2, "llama.cpp PR#22439")
def end_cut_by_count(cache: Any) -> None:
    """A removal to the end takes the number of a token for a position."""
    cells, drop = cache.cells, cache.cells.drop

    def drop_by_count(owner: int, begin: int, end: int | None) -> None:
        index = cells.indexes[owner]
        if cache.sizes.sections and end is None and begin < len(index):
            begin = index.positions[begin] // UNIT
        drop(owner, begin, end)

    cells.drop = drop_by_count


@mistake("causal", 3, "llama.cpp#13865")
def image_shifted_by_first_axis(cache: Any) -> None:
    """If an image moves, only t of its keys is rotated, although y and x of text move
    with t."""
    turn, sections = cache.turn, cache.sizes.sections

    def turn_first_axis(cells: Ints, distance: int) -> None:
        rates = cache.rope.rates
        is_image = get_offsets(cache.cells.positions[cells]).any(axis=0)
        turn(cells[~is_image], distance)
        cache.rope.rates = rates * 1
        cache.rope.rates[..., sections[0] :] = 0
        turn(cells[is_image], distance)
        cache.rope.rates = rates

    if sections:
        cache.turn = turn_first_axis


@mistake("causal", 4, "mlx-swift-lm#443")
def loaded_positions_counted(cache: Any) -> None:
    """A cache that loads saved content takes the number of a token for its position."""
    load = cache.cells.load

    def load_counted(table: Ints) -> None:
        if cache.sizes.sections and table.size:
            table = table.copy()
            table[0, table[0].argsort()] = pack(np.arange(table.shape[1]), ())
        load(table)

    cache.cells.load = load_counted
