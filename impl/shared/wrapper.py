"""Several caches under one interface: no arrays here, whatever the framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.impl.shared.batch import check_copy, check_position, check_range


class WrapperCache:
    """An ordered list of caches, each with the layers of one type.

    All were made for the same number of sequences and the same batch.
    """

    def __init__(self, caches: Sequence[Any], sequences: int) -> None:
        if not caches:
            raise ValueError("a wrapper needs at least one cache")
        self.caches, self.sequences = list(caches), sequences

    def of(self, layer_type: int) -> Any:
        """The cache that has the layers of this type."""
        return self.caches[layer_type]

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int] = (),
        multimodal: Sequence[int] = (),
        reserve: bool = False,
    ) -> None:
        """All caches take the pass, or none; what each evicts before stays evicted."""
        rows = positions, sequences, exceptions, multimodal
        batch = self.caches[0].make_batch(*rows)  # none of them would make another
        self.close()
        if reserve:
            for cache in self.caches:
                cache.reserve(batch)
            return
        for cache in self.caches:
            cache.evict(batch)
        for cache in self.caches:
            cache.refuse(batch)
        for cache in self.caches:
            cache.add(batch)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """In all caches, until one cannot."""
        check_copy(source, target, length, self.sequences)
        self.close()
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """From all caches, until one cannot."""
        check_range(sequence, begin, end, self.sequences)
        self.close()
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        check_position(sequence, position, self.sequences)
        return all(cache.can_resume(sequence, position) for cache in self.caches)
