"""Mistakes between passes: remove, copy, rotate, save and resume."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.batch import Ints, PassRows


@mistake("swa", 2, "ollama 1fc35f126")
def can_resume_beyond_end(cache: Any) -> None:
    """Positions after the stored end count as resumable."""
    edit(cache, "can_resume", " and position <= self.cells.get_end(sequence)", "")


@mistake("swa", 2, "ollama b42970063")
def resume_evicted_window(cache: Any) -> None:
    """A sequence can be resumed where the window has been evicted."""
    edit(cache, "can_resume", "begin >= first and ", "")


@mistake("causal", 2, "ollama 3d9498a42")
def remove_to_end_constant(cache: Any) -> None:
    """The end -1 is taken as a position, although it means "to the end"."""
    original = "if end is None:"
    edit(cache, "remove", original, "end = -1 if end is None else end\n    if False:")


@mistake("causal", 4, "ollama, kvcache/causal.go at 1fc35f126")
def remove_shared_half_done(cache: Any) -> None:
    """An error in the middle of a removal leaves half of it done."""
    first = "self.cells.drop(sequence, begin, end)"
    edit(cache, "remove", "raise SharedError", f"{first}\n        raise SharedError")


@mistake("causal", 4, "llama.cpp#3825")
def shift_twice(cache: Any) -> None:
    """A second shift overwrites the first shift if the first shift is still pending."""
    turn, evict = cache.turn, cache.evict
    copy_cells, paste_cells = cache.copy_cells, cache.paste_cells
    pending = np.zeros(cache.cells.count, np.int64)

    def turn_later(cells: Ints, distance: int) -> None:
        pending[cells] = distance

    def settle() -> None:
        for distance in np.unique(pending[pending != 0]).tolist():
            turn(np.flatnonzero(pending == distance), distance)
        pending[:] = 0

    def settle_and_evict(batch: PassRows) -> None:
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


@mistake("causal", 3, "llama.cpp PR#14742")
def shift_other_stream(cache: Any) -> None:
    """A shift is applied to sequence 0 and to no other sequence."""
    turn = cache.turn

    def turn_own(cells: Ints, distance: int) -> None:
        owned_cells = cells[cache.cells.bits[cells] == 1 << 0]
        if len(owned_cells):
            turn(owned_cells, distance)

    cache.turn = turn_own


@mistake("causal", 3)
def shift_values(cache: Any) -> None:
    """V is rotated as well as K."""
    turn = cache.turn

    def turn_both(cells: Ints, distance: int) -> None:
        turn(cells, distance)
        pair = cache.copy_cells(cells[:1])
        if pair is not None and pair[0].shape == pair[1].shape:
            cache.keys, cache.values = cache.values, cache.keys
            turn(cells, distance)
            cache.keys, cache.values = cache.values, cache.keys

    cache.turn = turn_both


@mistake("swa", 3, "llama.cpp#12357")
def shift_window_base(cache: Any) -> None:
    """Layers with a window are shifted with the wrong RoPE base."""
    if cache.bases is not None:
        cache.bases = cache.bases[:1]


@mistake("causal", 5, "llama.cpp PR#5840")
def fragmented_save(cache: Any) -> None:
    """The size of a saved state is the number of used cells, not the index of the last
    used cell plus 1."""
    list_used = cache.cells.list_used
    cache.cells.list_used = lambda: np.arange(len(list_used()))


@mistake("chunked", 3)
def turning_is_refused_first(cache: Any) -> None:
    """If the following tokens are shared and keys cannot be rotated either, the removal
    is refused with the wrong one of the two reasons."""
    original = "is_shared(sequence, following)"
    edit(cache, "remove", original, f"{original} and self.can_shift")


@mistake("swa-memory", 4)
def saved_in_sixteen_bits(cache: Any) -> None:
    """Positions are saved with sixteen bits."""
    original = "self.cells.table[:, used]"
    edit(cache, "save", original, f"{original}.astype(np.int16).astype(np.int64)")
