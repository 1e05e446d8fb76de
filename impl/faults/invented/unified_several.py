"""Invented mistakes of encoder caches and of wrappers."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch, check_range
from lockstep.impl.shared.causal import CausalCacheBase
from lockstep.impl.shared.errors import CacheFullError, NotSupportedError


@invent("remove", "wrong sequence", "encoder", 3)
def image_belongs_to_its_sequence(encoder: Any) -> None:
    """Only a removal from the sequence that brought the image empties the place; it is
    known by its position alone."""
    add, remove = encoder.add, encoder.remove
    owner = -1

    def add_and_note(batch: Batch) -> None:
        nonlocal owner
        add(batch)
        if len(batch.images):
            owner = int(batch.sequences[batch.images.max()])

    def remove_own(sequence: int, begin: int, end: int | None) -> None:
        check_range(sequence, begin, end, encoder.sequences)
        if sequence == owner:
            remove(sequence, begin, end)
        encoder.close()

    encoder.add, encoder.remove = add_and_note, remove_own


@invent("put", "missing rollback", "encoder", 2)
def reserved_image_stays(encoder: Any) -> None:
    """The image that a pass puts which only reserves is stored, and stays."""
    encoder.reserve = encoder.add


@invent("forward", "missing rollback", "wrapper", 2)
def caches_take_one_by_one(wrapper: Any) -> None:
    """Each cache takes the batch on its own; if one refuses, those before it keep it."""

    def forward(*rows: Any) -> None:
        for cache in wrapper.caches:
            cache.forward(*rows)

    wrapper.forward = forward


@invent("forward", "evicted too late", "wrapper", 3)
def refused_pass_brings_back(wrapper: Any) -> None:
    """A pass that one cache refuses brings back what the others have evicted for it."""
    forward = wrapper.forward
    pools = [cache for cache in wrapper.caches if isinstance(cache, CausalCacheBase)]

    def forward_or_undo(*rows: Any) -> None:
        saved = [cache.save() for cache in pools]
        try:
            forward(*rows)
        except (CacheFullError, NotSupportedError):
            for cache, content in zip(pools, saved, strict=True):
                cache.load(content)
            raise

    wrapper.forward = forward_or_undo


@invent("copy_prefix", "order", "wrapper", 3)
def copies_from_last_cache(wrapper: Any) -> None:
    """The last cache is the first to be asked: if it cannot copy, none has copied."""

    def copy_prefix(source: int, target: int, length: int) -> None:
        for cache in reversed(wrapper.caches):
            cache.copy_prefix(source, target, length)

    wrapper.copy_prefix = copy_prefix


@invent("can_resume", "wrong layer", "wrapper", 1)
def first_cache_resumes(wrapper: Any) -> None:
    """The first cache answers for all."""
    first = wrapper.caches[0]
    wrapper.can_resume = lambda sequence, position: first.can_resume(sequence, position)
