"""Several caches as one: a model whose layers differ in what they need."""

from __future__ import annotations

from collections.abc import Sequence

from .batch import Batch, check_copy, check_range
from .causal import CausalCache
from .encoder import EncoderCache


class WrapperCache:
    """An ordered list of caches under one interface. Each has the layers of one type;
    `caches[type]` is the one to ask what they see."""

    def __init__(self, caches: Sequence[CausalCache | EncoderCache]) -> None:
        self.caches = list(caches)

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """All caches take the batch, or none. What each evicts before stays evicted."""
        first = self.caches[0]
        batch.check(first.sequences, first.batch)
        self.close()
        if reserve:
            return
        for cache in self.caches:
            cache.evict(batch)
        for cache in self.caches:
            cache.refuse(batch)
        for cache in self.caches:
            cache.add(batch, tags)

    def close(self) -> None:
        """Ends the pass in all caches."""
        for cache in self.caches:
            cache.close()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """In all caches, until one cannot."""
        check_copy(source, target, length, self.caches[0].sequences)
        self.close()
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """From all caches, until one cannot."""
        check_range(sequence, begin, end, self.caches[0].sequences)
        self.close()
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)
