"""Invented mistakes in a pass: which rows see what."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import Pass, round_up


@invent("forward", "bound", "swa", 2)
def columns_from_first_row(cache: Any) -> None:
    """The first row of a sequence is taken for its lowest: columns begin where its window
    does."""
    compute_columns = cache.compute_columns

    def compute_short(batch: Batch) -> tuple[int, int]:
        begin, end = compute_columns(batch)
        if len(batch.owners) > 1:
            return begin, end
        track = cache.cells.tracks[batch.owners[0]]
        low = cache.get_low(int(batch.positions[0]))
        padding = cache.sizes.cache_padding
        return int(track.cells[track.find(low) :].min()) // padding * padding, end

    cache.compute_columns = compute_short


@invent("forward", "silent clamp", "causal", 2)
def looks_ahead_within_batch(cache: Any) -> None:
    """A row that may look ahead sees up to the highest position of its batch, and not
    what was stored behind that before."""
    compute_limits = cache.compute_limits

    def compute_less(batch: Batch) -> Ints:
        limits: Ints = compute_limits(batch)
        limits[2, batch.free] = batch.positions.max()
        return limits

    cache.compute_limits = compute_less


@invent("forward", "bound", "swa", 1)
def exception_frees_window(cache: Any) -> None:
    """A row that may look ahead may look back behind its window too."""
    compute_limits = cache.compute_limits

    def compute_more(batch: Batch) -> Ints:
        limits: Ints = compute_limits(batch)
        limits[1, batch.free] = 0
        return limits

    cache.compute_limits = compute_more


@invent("forward", "bound", "chunked", 1)
def chunk_from_first_token(cache: Any) -> None:
    """Chunks are counted from the first token of a sequence, not from position 0."""
    compute_limits = cache.compute_limits

    def compute_from_first(batch: Batch) -> Ints:
        limits: Ints = compute_limits(batch)
        for owner in batch.owners if cache.chunk else ():
            rows = batch.get_rows(owner)
            own = batch.positions[rows]
            limits[1, rows] = own - (own - cache.cells.tracks[owner].first) % cache.chunk
        return limits

    cache.compute_limits = compute_from_first


@invent("forward", "wrong sequence", "chunked", 1)
def rows_side_by_side(cache: Any) -> None:
    """The rows of a sequence are taken to stand side by side: where they alternate with
    those of another, its track lists cells of that one."""
    make_batch = cache.make_batch

    def make_with_blocks(*rows: Any) -> Batch:
        batch: Batch = make_batch(*rows)

        def get_block(owner: int) -> Ints:
            own = np.flatnonzero(batch.sequences == owner)
            first = min(int(own[0]), len(batch) - len(own))
            return np.arange(first, first + len(own))

        batch.get_rows = get_block  # type: ignore[method-assign]
        return batch

    cache.make_batch = make_with_blocks


@invent("forward", "wrong dtype", "causal", 1)
def sets_in_sixteen_bits(cache: Any) -> None:
    """The set of sequences of a new cell has sixteen bits: of many sequences, those with
    high numbers are in none, or in each other's."""
    cells, add = cache.cells, cache.cells.add

    def add_narrow(batch: Batch) -> Ints:
        added: Ints = add(batch)
        cells.bits[added] = cells.bits[added].astype(np.int16)
        return added

    cells.add = add_narrow


@invent("forward", "evicted too early", "causal", 2)
def same_position_replaces(cache: Any) -> None:
    """A token at a position that its sequence has already takes the place of the old
    one; both should be seen."""
    add = cache.add

    def drop_and_add(batch: Batch) -> None:
        rows = zip(batch.positions.tolist(), batch.sequences.tolist(), strict=True)
        for position, owner in rows:
            cache.cells.drop(owner, position, position + 1)
        add(batch)

    cache.add = drop_and_add


@invent("forward", "order", "swa-memory", 2)
def step_back_stays_last(cache: Any) -> None:
    """New tokens are compared with each other, and not with those before them, to see
    whether a sequence's list is still in order."""
    for track in cache.cells.tracks:
        track.add = append_to(track)


def append_to(track: Any) -> Any:
    add = track.add

    def append(positions: Ints, cells: Ints) -> None:
        if (positions[1:] < positions[:-1]).any():
            add(positions, cells)
            return
        track.make_room(len(cells))
        begin, track.end = track.end, track.end + len(cells)
        track.arrays[:, begin : track.end] = positions, cells

    return append


@invent("get", "silent clamp", "causal", 1)
def columns_at_most_capacity(cache: Any) -> None:
    """No more columns come back than one sequence has room for, though its cells may lie
    farther apart: the first ones are cut off."""
    compute_columns, sizes = cache.compute_columns, cache.sizes

    def compute_some(batch: Batch) -> tuple[int, int]:
        begin, end = compute_columns(batch)
        most = round_up(sizes.capacity, sizes.cache_padding)
        return max(begin, end - most), end

    cache.compute_columns = compute_some


@invent("get", "stale metadata", "causal", 2)
def mask_of_same_rows(cache: Any) -> None:
    """A mask is kept for the next pass with the same rows and columns, whatever the
    cells hold by then."""
    make_mask, kept = cache.make_mask, {}

    def make_once(current: Pass) -> Any:
        batch = current.batch
        rows = batch.positions.tobytes(), batch.sequences.tobytes(), batch.free.tobytes()
        key = (*rows, current.begin, current.end, current.cells is None)
        if key not in kept:
            kept[key] = make_mask(current)
        return kept[key]

    cache.make_mask = make_once


@invent("put", "order", "causal", 1)
def put_in_order_of_positions(cache: Any) -> None:
    """Rows are put in the order of their positions into cells that were given out in the
    order of rows."""
    add = cache.cells.add

    def add_and_sort(batch: Batch) -> Ints:
        return add(batch)[np.argsort(batch.positions, kind="stable")]  # type: ignore[no-any-return]

    cache.cells.add = add_and_sort


@invent("put", "bound", "swa", 2)
def put_over_one_hole(cache: Any) -> None:
    """Cells with one cell of another between them are taken for neighbours: rows behind
    it are put one cell too early."""
    add = cache.cells.add

    def add_together(batch: Batch) -> Ints:
        cells: Ints = add(batch)
        first, last = int(cells[0]), int(cells[-1])
        if last - first == len(cells):
            return np.arange(first, last)
        return cells

    cache.cells.add = add_together


@invent("put", "aliasing", "causal", 3)
def put_while_reserving(cache: Any) -> None:
    """A pass that only reserves puts into the first cells, whoever holds them."""
    cells = cache.cells

    def reserve(batch: Batch) -> None:
        cells.add = lambda batch: np.arange(len(batch)) % cells.count
        cache.compute_columns = lambda batch: (0, cells.count)
        cache.add(batch)
        del cells.add, cache.compute_columns

    cache.reserve = reserve


@invent("get", "wrong layer", "causal", 2)
def get_of_last_put(cache: Any) -> None:
    """K and V come from the layer that was put last, whichever is asked for."""
    get, put = cache.get, cache.put
    last = [0]

    def put_and_note(layer: int, keys: Any, values: Any) -> None:
        put(layer, keys, values)
        last[0] = layer

    cache.put, cache.get = put_and_note, lambda layer: get(last[0])
