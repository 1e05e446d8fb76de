"""Mistakes between passes: what is removed, copied, turned, saved, and can be resumed."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.impl.shared.batch import Batch, Ints, check_range
from lockstep.impl.shared.cells import Cells
from lockstep.impl.shared.errors import NotSupportedError, SharedError


def resume_anywhere(cache: Any) -> None:
    """`can_resume` does not look for the last position that is stored."""
    can_resume = cache.can_resume

    def has_begin(sequence: int, position: int) -> bool:
        if can_resume(sequence, position):
            return True
        track = cache.cells.tracks[sequence]
        return bool(len(track) and max(0, position - cache.window) >= track.first)

    cache.can_resume = has_begin


def resume_without_window(cache: Any) -> None:
    """`can_resume` does not look for the first position that is stored."""
    can_resume = cache.can_resume

    def has_end(sequence: int, position: int) -> bool:
        if can_resume(sequence, position):
            return True
        track = cache.cells.tracks[sequence]
        return bool(len(track) and position <= track.last + 1)

    cache.can_resume = has_end


def remove_before_all(cache: Any) -> None:
    """-1 is passed for the end, which is no sign for "to the end" but a position: nothing
    lies before it, and everything behind it moves."""
    remove = cache.remove

    def remove_to(sequence: int, begin: int, end: int | None) -> None:
        if end is not None:
            remove(sequence, begin, end)
            return
        check_range(sequence, begin, None, cache.sizes.sequences)
        cells, track = cache.cells, cache.cells.tracks[sequence]
        if cells.is_shared(sequence, track.cells):
            raise SharedError("what follows position -1 is shared")
        if len(track) and not cache.can_shift:
            raise NotSupportedError("keys cannot be turned to another position here")
        cache.close()
        positions, distance = track.positions, begin + 1
        positions += distance
        cells.positions[track.cells] += distance
        if len(track):
            cache.turn(track.cells, distance)

    cache.remove = remove_to


def remove_before_check(cache: Any) -> None:
    """That what follows is shared shows once the range is gone."""
    remove = cache.remove

    def remove_half(sequence: int, begin: int, end: int | None) -> None:
        try:
            remove(sequence, begin, end)
        except SharedError:
            cache.cells.drop(sequence, begin, end)
            raise

    cache.remove = remove_half


def copy_to_old(cache: Any) -> None:
    """The target of a copied prefix keeps what it had."""
    cells: Cells = cache.cells

    def copy_prefix(source: int, target: int, length: int) -> None:
        track, old = cells.tracks[source], cells.tracks[target]
        copied = track.copy(track.find(length))
        new = ~np.isin(copied.cells, old.cells)
        cells.bits[copied.cells] |= 1 << target
        old.add(copied.positions[new], copied.cells[new])

    cells.copy_prefix = copy_prefix  # type: ignore[method-assign]


def overwrite_pending(cache: Any) -> None:
    """Keys are turned when the next pass needs them; of two turns only the second one is
    remembered."""
    turn, evict = cache.turn, cache.evict
    copy_cells, paste_cells = cache.copy_cells, cache.paste_cells
    pending = np.zeros(cache.cells.count, np.int64)

    def turn_later(cells: Ints, distance: int) -> None:
        pending[cells] = distance

    def settle() -> None:
        for distance in np.unique(pending[pending != 0]).tolist():
            turn(np.flatnonzero(pending == distance), distance)
        pending[:] = 0

    def settle_and_evict(batch: Batch) -> None:
        settle()
        evict(batch)

    def settle_and_copy(cells: Ints) -> Any:
        settle()
        return copy_cells(cells)

    def forget_and_paste(arrays: Any) -> None:
        pending[:] = 0
        paste_cells(arrays)

    cache.turn, cache.evict = turn_later, settle_and_evict
    cache.copy_cells, cache.paste_cells = settle_and_copy, forget_and_paste


def turn_first_sequence(cache: Any) -> None:
    """Only what belongs to sequence 0 is turned."""
    turn = cache.turn

    def turn_own(cells: Ints, distance: int) -> None:
        own = cells[cache.cells.bits[cells] == 1 << 0]
        if len(own):
            turn(own, distance)

    cache.turn = turn_own


def turn_values(cache: Any) -> None:
    """Values are turned as keys are, where they have the form of keys."""
    turn = cache.turn

    def turn_both(cells: Ints, distance: int) -> None:
        turn(cells, distance)
        pair = cache.copy_cells(cells[:1])
        if pair is not None and pair[0].shape == pair[1].shape:
            cache.keys, cache.values = cache.values, cache.keys
            turn(cells, distance)
            cache.keys, cache.values = cache.values, cache.keys

    cache.turn = turn_both


def turn_by_first_base(cache: Any) -> None:
    """All layers turn by the base of the first."""
    if cache.bases is not None:
        cache.bases = cache.bases[:1]


def save_first_cells(cache: Any) -> None:
    """As many cells are saved as are in use: the first ones."""
    list_used = cache.cells.list_used
    cache.cells.list_used = lambda: np.arange(len(list_used()))
