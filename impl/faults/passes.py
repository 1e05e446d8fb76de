"""Mistakes in a forward pass: eviction, reservation and exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.batch import PassRows
from lockstep.impl.shared.errors import CacheFullError, NotSupportedError


@mistake("swa", 2, "ollama 1fc35f126 (#10127)")
def swa_idle_sequence(cache: Any) -> None:
    """Tokens are evicted from the sequences of the batch, but not from the other
    sequences."""

    def evict(batch: PassRows) -> None:
        if cache.memory is None:
            return
        for owner in batch.owners:
            low = int(batch.positions[batch.get_rows(owner)].min())
            cache.cells.drop(owner, 0, low - cache.memory)

    cache.evict = evict


@mistake("swa", 1, "ollama 1fc35f126")
def swa_memory_at_capacity(cache: Any) -> None:
    """A memory equal to the capacity is treated as sliding."""
    sizes, cells = cache.sizes, cache.cells
    wider = replace(sizes, capacity=sizes.capacity + 1)
    if wider.get_memory() == sizes.capacity:
        cache.memory = sizes.capacity
        few = cells.few, cells.unit
        cache.cells = type(cells)(wider.count_cells(), sizes.sequences, *few)


@mistake("causal", 1, "ollama a8e83a765")
def exceptions_by_position(cache: Any) -> None:
    """Non-causal rows are matched by position, not by row."""
    wrong = "np.isin(batch.positions, batch.positions[batch.free])"
    edit(cache, "compute_limits", "[1, batch.free]", f"[1, {wrong}]")


@mistake("causal", 2, "ollama e95278932")
def exceptions_leak(cache: Any) -> None:
    """Non-causal rows leak into the next pass."""
    add = cache.add
    freed: list[int] = []

    def add_with_exceptions(batch: PassRows) -> None:
        if len(batch.free):
            freed[:] = batch.free.tolist()
        rows = [row for row in freed if row < len(batch)]
        batch.free = np.asarray(rows, np.int64)
        add(batch)

    cache.add = add_with_exceptions


@mistake("causal", 2, "ollama dbb149e6f")
def reserve_writes(cache: Any) -> None:
    """Reserving memory changes metadata."""
    reserve = cache.reserve

    def take_and_reserve(batch: PassRows) -> None:
        if len(batch) <= cache.cells.free:
            cache.cells.add(batch)
        reserve(batch)

    cache.reserve = take_and_reserve


@mistake("wrapper", 3, "ollama, wrapper.go until 7b22ac968")
def wrapper_unwind(wrapper: Any) -> None:
    """If one cache of a wrapper fails, the other caches drop their earlier content."""
    for number, cache in enumerate(wrapper.caches):
        cache.refuse = unwind(cache.refuse, wrapper.caches[:number])


def unwind(
    refuse: Callable[[PassRows], None], state: Sequence[Any]
) -> Callable[[PassRows], None]:
    def refuse_and_unwind(batch: PassRows) -> None:
        try:
            refuse(batch)
        except (CacheFullError, NotSupportedError):
            for cache in state:
                remove_rows(cache, batch)
            raise

    return refuse_and_unwind


def remove_rows(cache: Any, batch: PassRows) -> None:
    rows = batch.positions.tolist(), batch.sequences.tolist()
    for position, sequence in zip(*rows, strict=True):
        with suppress(NotSupportedError, CacheFullError):
            cache.remove(sequence, position, None)


@mistake("wrapper", 3)
def wrapper_evicts_more(wrapper: Any) -> None:
    """If a cache of a wrapper refuses a pass, each window loses one token more than the
    pass would have evicted."""
    for cache in wrapper.caches:
        cache.refuse = evict_more(cache.refuse, wrapper.caches)


def evict_more(
    refuse: Callable[[PassRows], None], caches: Sequence[Any]
) -> Callable[[PassRows], None]:
    def refuse_and_evict(batch: PassRows) -> None:
        try:
            refuse(batch)
        except (CacheFullError, NotSupportedError):
            for cache in caches:
                rows = batch.positions + 1, batch.sequences, (), (), ()
                cache.evict(cache.make_batch(*rows))
            raise

    return refuse_and_evict


@mistake("encoder", 3, "ollama a1cda80bc")
def encoder_position(encoder: Any) -> None:
    """The first position of the batch is used as the position of the image."""
    edit(encoder, "add", "[batch.images.max()]", "[0]")


@mistake("causal", 2)
def looks_ahead_within_batch(cache: Any) -> None:
    """A row in `exceptions` sees positions up to the highest position of its batch, but
    not stored tokens at higher positions."""
    edit(cache, "compute_limits", "FAR", "batch.places.max() + 1")


@mistake("causal", 2)
def surplus_rows_dropped(cache: Any) -> None:
    """Rows beyond those of the pass are dropped silently."""
    put = cache.put

    def put_some(layer: int, keys: Any, values: Any) -> None:
        rows = len(cache.get_pass().batch)
        put(layer, keys[:, :, :rows], values[:, :, :rows])

    cache.put = put_some
