"""A wrapper that makes several caches one cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockstep.impl.shared.batch import check_copy, check_position, check_range
from lockstep.impl.shared.errors import MisuseError


class WrapperCache:
    """A list of caches, one for each type of layer.

    Args:
        caches: at least one cache; all have the same numbers of sequences and rows.
        sequences: number of sequences.
    """

    def __init__(self, caches: Sequence[Any], sequences: int) -> None:
        if not caches:
            raise MisuseError("a wrapper needs at least one cache")
        self.caches, self.sequences = list(caches), sequences

    def of(self, layer_type: int) -> Any:
        """Returns the cache of the layers of this type."""
        return self.caches[layer_type]

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int] = (),
        multimodal: Sequence[int] = (),
        reserve: bool = False,
        coordinates: Sequence[Sequence[int]] = (),
    ) -> None:
        """Opens the pass in all caches; if a cache refuses, opens the pass in none.

        Tokens that were evicted to make space stay evicted.
        """
        rows = positions, sequences, exceptions, multimodal, coordinates
        batch = self.caches[0].make_batch(*rows)  # the same for all of them
        self.close()
        if reserve:
            for cache in self.caches:
                cache.check_rows(batch)
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
        """Copies a prefix in each cache, in order; stops at the first refusal."""
        check_copy(source, target, length, self.sequences)
        self.close()
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes tokens from each cache, in order; stops at the first refusal."""
        check_range(sequence, begin, end, self.sequences)
        self.close()
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    def save(self) -> list[Any]:
        """Returns a copy of the content of all caches."""
        return [cache.save() for cache in self.caches]

    def load(self, saved: Sequence[Any]) -> None:
        """Replaces the content of all caches by the result of `save`, or of none if a
        cache refuses."""
        if len(saved) != len(self.caches):
            raise MisuseError(
                f"load: {len(saved)} caches were saved, but here are {len(self.caches)}"
            )
        pairs = [*zip(self.caches, saved, strict=True)]
        for cache, content in pairs:
            cache.check_load(content)
        for cache, content in pairs:
            cache.load(content)

    def held(self) -> dict[str, int]:
        """Returns the sum of the memory that the caches hold."""
        total: Counter[str] = Counter()
        for cache in self.caches:
            total.update(cache.held())
        return dict(total)

    def can_resume(self, sequence: int, position: int) -> bool:
        check_position(sequence, position, self.sequences)
        return all(cache.can_resume(sequence, position) for cache in self.caches)
