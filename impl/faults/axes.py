"""Mistakes with positions of three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.axes import get_offsets, pack
from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.cells import BITS
from lockstep.reference.rope import list_axes


@mistake("causal", 2, "llama.cpp PR#22439")
def end_cut_by_count(cache: Any) -> None:
    """A removal to the end leaves as many tokens as it should leave positions."""
    cells, drop = cache.cells, cache.cells.drop

    def drop_by_count(owner: int, begin: int, end: int | None) -> None:
        index = cells.indexes[owner]
        if end is not None or not cache.sizes.sections:
            drop(owner, begin, end)
        elif begin < len(index):
            first, last = index.get_span()
            cells.freed.append((owner, index.cut(first + begin, last)))

    cells.drop = drop_by_count


@mistake("causal", 3, "llama.cpp#13865")
def image_shifted_as_text(cache: Any) -> None:
    """The keys of an image that moves are rotated like text at its new position."""
    turn, sections = cache.turn, cache.sizes.sections or ()

    def turn_axis(axis: int, cells: Ints, distance: int) -> None:
        rates, axes = cache.rope.rates, np.array(list_axes(sections, sum(sections)))
        cache.rope.rates = rates * 1
        cache.rope.rates[..., np.flatnonzero(axes != axis).tolist()] = 0
        turn(cells, distance)
        cache.rope.rates = rates

    def turn_as_text(cells: Ints, distance: int) -> None:
        turn(cells, distance)
        if cache.form is None or not sections:
            return
        for axis, offsets in enumerate(get_offsets(cache.cells.positions[cells]), 1):
            for offset in np.unique(offsets[offsets != 0]).tolist():
                turn_axis(axis, cells[offsets == offset], -offset)

    cache.turn = turn_as_text


@mistake("causal", 4, "mlx-swift-lm#443")
def loaded_positions_counted(cache: Any) -> None:
    """A cache that loads saved content counts positions anew: the number of a token is
    taken for its position."""
    cells, load = cache.cells, cache.cells.load

    def load_counted(table: Ints) -> None:
        positions, bits = table.copy()
        for owner in range(len(cells.indexes) if cache.sizes.sections else 0):
            (held,) = (bits & BITS[owner]).nonzero()
            order = held[positions[held].argsort(kind="stable")]
            positions[order] = pack(np.arange(len(held)), ()) if len(held) else ()
        load(np.stack((positions, bits)))

    cells.load = load_counted
