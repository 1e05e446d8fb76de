"""Mistakes in a forward pass: what leaves, what is reserved, who may look ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import FAR
from lockstep.impl.shared.errors import CacheFullError, NotSupportedError


def slide_batch_only(cache: Any) -> None:
    """Only the sequences of the batch let go of old tokens."""

    def evict(batch: Batch) -> None:
        if cache.memory is None:
            return
        for owner in batch.owners:
            low = int(batch.positions[batch.get_rows(owner)].min())
            cache.cells.drop(owner, 0, low - cache.memory)

    cache.evict = evict


def slide_at_capacity(cache: Any) -> None:
    """`>` where `>=` belongs: a memory as large as the capacity still slides."""
    sizes = cache.sizes
    wider = replace(sizes, capacity=sizes.capacity + 1)
    if wider.get_memory() == sizes.capacity:
        cache.memory = sizes.capacity
        cache.cells = type(cache.cells)(wider.count_cells(), sizes.sequences)


def free_positions(cache: Any) -> None:
    """Whatever row stands at the position of an exception may look ahead too."""
    compute_limits = cache.compute_limits

    def compute_more(batch: Batch) -> Ints:
        limits: Ints = compute_limits(batch)
        _, _, high = limits
        high[np.isin(batch.positions, batch.positions[batch.free])] = FAR
        return limits

    cache.compute_limits = compute_more


def keep_exceptions(cache: Any) -> None:
    """A pass without exceptions has those of the one before."""
    add = cache.add
    kept: list[int] = []

    def add_with_exceptions(batch: Batch) -> None:
        if len(batch.free):
            kept[:] = batch.free.tolist()
        rows = [row for row in kept if row < len(batch)]
        batch.free = np.asarray(rows, np.int64)
        add(batch)

    cache.add = add_with_exceptions


def reserve_cells(cache: Any) -> None:
    """A pass that only reserves takes cells, as any other."""
    reserve = cache.reserve

    def take_and_reserve(batch: Batch) -> None:
        if len(batch) <= cache.cells.free:
            cache.cells.add(batch)
        reserve(batch)

    cache.reserve = take_and_reserve


def unwind_all(wrapper: Any) -> None:
    """If a cache refuses, those before it remove what stands at each position of the
    batch and behind it, whenever it came."""
    for number, cache in enumerate(wrapper.caches):
        cache.refuse = unwind(cache.refuse, wrapper.caches[:number])


def unwind(
    refuse: Callable[[Batch], None], before: Sequence[Any]
) -> Callable[[Batch], None]:
    def refuse_and_unwind(batch: Batch) -> None:
        try:
            refuse(batch)
        except (CacheFullError, NotSupportedError):
            for cache in before:
                remove_rows(cache, batch)
            raise

    return refuse_and_unwind


def remove_rows(cache: Any, batch: Batch) -> None:
    rows = batch.positions.tolist(), batch.sequences.tolist()
    for position, sequence in zip(*rows, strict=True):
        with suppress(NotSupportedError, CacheFullError):
            cache.remove(sequence, position, None)


def take_first_position(encoder: Any) -> None:
    """The image is taken to stand where the batch begins."""
    add = encoder.add

    def add_at_first(batch: Batch) -> None:
        add(batch)
        if len(batch.images):
            encoder.image = int(batch.positions[0])

    encoder.add = add_at_first
