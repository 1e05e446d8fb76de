"""Combines several caches for a model whose layers need different caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import product
from typing import Any

from .batch import Batch, check_copy, check_range
from .causal import CausalCache
from .encoder import EncoderCache
from .errors import refuse

Cache = CausalCache | EncoderCache


class WrapperCache:
    """An ordered list of caches under one interface.

    The wrapper itself stores no tokens: each result follows from the results of its
    caches. When a cache refuses a pass, any of the caches may already have evicted tokens
    to make room for the pass; `list_outcomes` returns the possible contents.

    Args:
        caches: one cache for each type of layer; `caches[type]` determines which tokens
            a layer of this type sees.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = list(caches)

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """Adds the batch to all caches, or to none if one of the caches refuses it.

        Raises:
            CacheFull, NotSupported, or a group of both: the error of the first cache that
                refuses. No token is added, and no pass is open.
        """
        batch.check(self.caches[0].sequences, self.caches[0].batch)
        self.close()
        self.each(lambda cache: refuse(cache.list_refusals(batch, reserve)))
        if not reserve:
            self.each(lambda cache: cache.evict(batch))
            self.each(lambda cache: cache.add(batch, tags))

    def list_outcomes(self, batch: Batch) -> list[list[Cache]]:
        """Returns the possible contents of the caches after they refuse this batch.

        Each cache may or may not have evicted tokens for the batch. The contents are
        therefore subsets of the earlier contents, and an earlier True from `can_resume`
        may no longer hold.

        Returns:
            One list of caches for each combination of evictions, beginning with the
            combination without evictions. The lists share no caches.
        """
        choices = []
        for cache in self.caches:
            choices.append([cache])
            if isinstance(cache, CausalCache) and cache.get_kept(batch) != cache.tokens:
                smaller = deepcopy(cache)
                smaller.evict(batch)
                choices[-1].append(smaller)
        return [deepcopy(list(caches)) for caches in product(*choices)]

    def close(self) -> None:
        """Ends the pass in all caches."""
        self.each(lambda cache: cache.close())

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies a prefix in each cache in order; stops at the first cache that refuses.

        The caches before it keep their copies.
        """
        check_copy(source, target, length, self.caches[0].sequences)
        self.close()
        self.each(lambda cache: cache.copy_prefix(source, target, length))

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes tokens from each cache in order; stops at the first that refuses.

        The tokens stay removed from the caches before it.
        """
        check_range(sequence, begin, end, self.caches[0].sequences)
        self.close()
        self.each(lambda cache: cache.remove(sequence, begin, end))

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns True if every cache can resume at this position."""
        answers = {cache.can_resume(sequence, position) for cache in self.caches}
        return False not in answers

    def save(self) -> Any:
        """Returns the content of all caches, for `load`."""
        return [cache.save() for cache in self.caches]

    def load(self, saved: Any) -> None:
        """Replaces the content of all caches by the result of `save`."""
        for cache, content in zip(self.caches, saved, strict=True):
            cache.load(content)

    def each(self, ask: Callable[[Cache], None]) -> None:
        """Calls `ask` with each cache in order; stops at the first error."""
        for cache in self.caches:
            ask(cache)
