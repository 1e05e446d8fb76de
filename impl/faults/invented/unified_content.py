"""Invented mistakes in what is saved and loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import Saved


@invent("save", "aliasing", "causal", 5)
def saved_table_is_live(cache: Any) -> None:
    """Where the used cells are the first ones, their table is saved as a slice of that of
    the cache, which goes on to change."""
    save = cache.save

    def save_slice() -> Saved:
        saved: Saved = save()
        used = cache.cells.list_used()
        if len(used) and used[-1] == len(used) - 1:
            return replace(saved, table=cache.cells.table[:, : len(used)])
        return saved

    cache.save = save_slice


@invent("save", "wrong sequence", "chunked", 5)
def saved_for_lowest_owner(cache: Any) -> None:
    """A token that several sequences share is saved as the first one's alone."""
    save = cache.save

    def save_unshared() -> Saved:
        saved: Saved = save()
        positions, bits = saved.table
        return replace(saved, table=np.stack((positions, bits & -bits)))

    cache.save = save_unshared


@invent("save", "stale metadata", "causal", 5)
def saved_cells_of_last_pass(cache: Any) -> None:
    """Which cells are in use is looked up when a pass takes some: what was given back
    since is saved as well, and takes room where it is loaded."""
    add, list_used, load = cache.add, cache.cells.list_used, cache.load
    used: list[Ints] = [list_used()]

    def add_and_look(batch: Batch) -> None:
        add(batch)
        used[0] = list_used()

    def load_and_look(saved: Saved) -> None:
        load(saved)
        used[0] = list_used()

    cache.add, cache.load = add_and_look, load_and_look
    cache.cells.list_used = lambda: used[0]


@invent("save", "wrong dtype", "swa-memory", 4)
def saved_in_sixteen_bits(cache: Any) -> None:
    """Positions are saved with sixteen bits."""
    save = cache.save

    def save_narrow() -> Saved:
        saved: Saved = save()
        positions, bits = saved.table
        narrow = positions.astype(np.int16).astype(np.int64)
        return replace(saved, table=np.stack((narrow, bits)))

    cache.save = save_narrow


@invent("load", "evicted too late", "causal", 4)
def load_keeps_other_sequences(cache: Any) -> None:
    """Sequences that are not in what is loaded keep what is not overwritten."""
    cells, load = cache.cells, cache.cells.load

    def load_beside(table: Ints) -> None:
        whole = cells.table.copy()
        whole[1] &= ~np.bitwise_or.reduce(table[1], initial=0)
        whole[:, : table.shape[1]] = table
        load(whole)
        cells.free, cells.lowest = int((cells.bits == 0).sum()), 0

    cells.load = load_beside


@invent("load", "order", "swa", 4)
def loaded_in_order_of_cells(cache: Any) -> None:
    """The tokens of a sequence are listed by cell when they are loaded, not by position,
    as if no cell had ever been used again."""
    cells, load = cache.cells, cache.cells.load

    def load_unsorted(table: Ints) -> None:
        load(table)
        for track in cells.tracks:
            order = track.cells.argsort()
            track.arrays[:, track.begin : track.end] = track.arrays[
                :, track.begin + order
            ]

    cells.load = load_unsorted


@invent("load", "stale metadata", "causal", 5)
def loaded_shared_counts_twice(cache: Any) -> None:
    """When cells are loaded, those that are free are counted by what each sequence
    holds, shared or not."""
    cells, load = cache.cells, cache.cells.load

    def load_and_count(table: Ints) -> None:
        load(table)
        cells.free = cells.count - sum(map(len, cells.tracks))

    cells.load = load_and_count
