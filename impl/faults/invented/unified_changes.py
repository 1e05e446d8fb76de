"""Invented mistakes between passes: what is copied, removed, turned, and resumed."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch, Ints, check_range
from lockstep.impl.shared.errors import NotSupportedError, SharedError


@invent("copy_prefix", "aliasing", "causal", 2)
def copied_list_grows_in_place(cache: Any) -> None:
    """The list of what a copied sequence holds is the begin of the other's, in the same
    memory: what is appended to either overwrites what was appended to the other."""
    cells, copy_prefix = cache.cells, cache.cells.copy_prefix

    def copy_in_place(source: int, target: int, length: int) -> None:
        copy_prefix(source, target, length)
        own, copied = cells.tracks[source], cells.tracks[target]
        copied.end = own.begin + len(copied)
        copied.arrays, copied.begin = own.arrays, own.begin

    cells.copy_prefix = copy_in_place


@invent("copy_prefix", "bound", "swa", 3)
def copied_length_counts_tokens(cache: Any) -> None:
    """The length of a prefix counts tokens that are stored, not positions."""
    cells, copy_prefix = cache.cells, cache.cells.copy_prefix

    def copy_tokens(source: int, target: int, length: int) -> None:
        positions = cells.tracks[source].positions
        if length < len(positions):
            length = int(positions[length])
        elif len(positions):
            length = int(positions[-1]) + 1
        copy_prefix(source, target, length)

    cells.copy_prefix = copy_tokens


@invent("remove", "bound", "causal", 3)
def shared_gap_is_refused(cache: Any) -> None:
    """What is removed from the middle must not be shared either; only what follows it
    must not."""
    cells, remove = cache.cells, cache.remove

    def remove_unshared(sequence: int, begin: int, end: int | None) -> None:
        check_range(sequence, begin, end, cache.sizes.sequences)
        track = cells.tracks[sequence]
        rest = track.cells[track.find(begin) :]
        if end is not None and cells.is_shared(sequence, rest):
            raise SharedError(f"sequence {sequence} shares what lies behind {begin}")
        remove(sequence, begin, end)

    cache.remove = remove_unshared


@invent("remove", "error class", "chunked", 3)
def turning_is_refused_first(cache: Any) -> None:
    """Where what follows is shared and cannot be turned either, the wrong one of the two
    is given as the reason."""
    remove = cache.remove

    def remove_or_say(sequence: int, begin: int, end: int | None) -> None:
        try:
            remove(sequence, begin, end)
        except SharedError as error:
            if cache.can_shift:
                raise
            raise NotSupportedError("keys cannot be turned here") from error

    cache.remove = remove_or_say


@invent("remove", "stale metadata", "causal", 3)
def empty_gap_is_not_turned(cache: Any) -> None:
    """Where no token lay in the gap, what follows moves without its keys being turned."""
    cells, close_gap = cache.cells, cache.cells.close_gap

    def close_and_list(owner: int, begin: int, end: int) -> Ints:
        track = cells.tracks[owner]
        held = track.find(end) - track.find(begin)
        moved: Ints = close_gap(owner, begin, end)
        return moved if held else moved[:0]

    cells.close_gap = close_and_list


@invent("remove", "silent clamp", "swa", 3)
def gap_begins_at_first_token(cache: Any) -> None:
    """A range that begins before the first token stored is cut to what is stored, and
    what follows moves up by less."""
    remove = cache.remove

    def remove_stored(sequence: int, begin: int, end: int | None) -> None:
        check_range(sequence, begin, end, cache.sizes.sequences)
        track = cache.cells.tracks[sequence]
        if len(track) and begin < track.first:
            begin = track.first if end is None else min(end, track.first)
        remove(sequence, begin, end)

    cache.remove = remove_stored


@invent("remove", "wrong layer", "chunked", 3)
def later_layers_are_not_turned(cache: Any) -> None:
    """Only the keys of the first layer are turned."""
    allocate = cache.allocate

    def allocate_and_forget(*form: int) -> None:
        allocate(*form)
        if cache.bases is not None:
            cache.rope.rates = cache.rope.rates * 1  # of its own
            cache.rope.rates[1:] = 0

    cache.allocate = allocate_and_forget


@invent("remove", "wrong dtype", "causal", 3)
def turned_step_by_step(cache: Any) -> None:
    """Keys that do not move far are turned by one position at a time, and each time
    rounded to the dtype of the cache."""
    turn = cache.turn

    def turn_in_steps(cells: Ints, distance: int) -> None:
        steps = abs(distance) if abs(distance) <= 32 else 1
        for _ in range(steps):
            turn(cells, distance // steps)

    cache.turn = turn_in_steps


@invent("can_resume", "bound", "swa", 2)
def resumes_one_short(cache: Any) -> None:
    """The window of a resumed query is taken to have `window` tokens with itself."""
    can_resume = cache.can_resume

    def has_most(sequence: int, position: int) -> bool:
        window = cache.window
        cache.window = None if window is None else window - 1
        try:
            return bool(can_resume(sequence, position))
        finally:
            cache.window = window

    cache.can_resume = has_most


@invent("can_resume", "stale metadata", "swa-memory", 4)
def resumes_at_removed_end(cache: Any) -> None:
    """The end of a sequence is the highest position it ever had, though its tail was
    removed since."""
    add, can_resume, tracks = cache.add, cache.can_resume, cache.cells.tracks
    ends: dict[int, int] = {}

    def add_and_note(batch: Batch) -> None:
        add(batch)
        for owner in batch.owners:
            ends[owner] = max(ends.get(owner, 0), tracks[owner].last + 1)

    def has_begin(sequence: int, position: int) -> bool:
        if can_resume(sequence, position):
            return True
        begin, track = max(0, position - cache.window), tracks[sequence]
        return bool(
            len(track) and begin >= track.first and position <= ends.get(sequence, 0)
        )

    cache.add, cache.can_resume = add_and_note, has_begin


@invent("can_resume", "wrong sequence", "swa", 3)
def resumes_the_source(cache: Any) -> None:
    """After a copied prefix the target is taken for the source, until it is cleared."""
    can_resume, copy_prefix, remove = cache.can_resume, cache.copy_prefix, cache.remove
    sources: dict[int, int] = {}

    def copy_and_note(source: int, target: int, length: int) -> None:
        copy_prefix(source, target, length)
        sources[target] = source

    def remove_and_forget(sequence: int, begin: int, end: int | None) -> None:
        remove(sequence, begin, end)
        if (begin, end) == (0, None):
            sources.pop(sequence, None)

    cache.copy_prefix, cache.remove = copy_and_note, remove_and_forget
    cache.can_resume = lambda sequence, position: can_resume(
        sources.get(sequence, sequence), position
    )
