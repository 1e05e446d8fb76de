"""Invented mistakes in what caches of many sequences must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.impl.faults.invented.unified import invent


@invent("forward", "missing rollback", "swa", 3)
def refused_batch_ends_pass(cache: Any) -> None:
    """The open pass is ended before a batch is found to be none."""
    forward = cache.forward

    def end_and_forward(*batch: Any) -> None:
        cache.close()
        forward(*batch)

    cache.forward = end_and_forward


@invent("forward", "wrong sequence", "chunked", 1)
def sequences_from_the_end(cache: Any) -> None:
    """Sequence -1 is the last one, as arrays have it."""
    make_batch, count = cache.make_batch, cache.sizes.sequences

    def make_from_end(positions: Any, sequences: Sequence[int], *rows: Any) -> Any:
        owners = [count - 1 if owner == -1 else owner for owner in sequences]
        return make_batch(positions, owners, *rows)

    cache.make_batch = make_from_end


@invent("remove", "silent clamp", "recurrent", 1)
def negative_begin_is_none(cache: Any) -> None:
    """A range that begins before position 0 begins there."""
    remove = cache.remove

    def remove_from_start(sequence: int, begin: int, end: int | None) -> None:
        remove(sequence, max(0, begin), end)

    cache.remove = remove_from_start


@invent("put", "silent clamp", "causal", 2)
def surplus_rows_dropped(cache: Any) -> None:
    """Of more rows than the pass has, the last ones are left out without a word."""
    put = cache.put

    def put_some(layer: int, keys: Any, values: Any) -> None:
        rows = len(cache.get_pass().batch)
        put(layer, keys[:, :, :rows], values[:, :, :rows])

    cache.put = put_some


@invent("put", "error class", "swa-memory", 2)
def other_form_is_type_error(cache: Any) -> None:
    """K and V of other heads or dimensions than the first raise TypeError."""
    fix_form = cache.fix_form

    def fix_or_raise(form: Any) -> None:
        try:
            fix_form(form)
        except ValueError as error:
            raise TypeError(*error.args) from error

    cache.fix_form = fix_or_raise
