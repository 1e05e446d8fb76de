"""Several caches as one: a model whose layers differ in what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import product

from .batch import Batch, check_copy, check_range
from .causal import CausalCache
from .encoder import EncoderCache
from .errors import refuse

Cache = CausalCache | EncoderCache


class WrapperCache:
    """An ordered list of caches under one interface.

    The wrapper stores nothing: each answer follows from the answers of its caches. When
    one of them refuses a pass, any of them may have evicted tokens to make room for it
    already; `list_outcomes` says what may be left.

    Args:
        caches: one for each type of layer; `caches[type]` tells what such a layer sees.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = list(caches)

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """Adds the batch to all caches if every one of them takes it, else to none.

        Raises:
            CacheFull, NotSupported: the answer of the first cache that refuses. Nothing
                is added, and no pass is open.
        """
        batch.check(self.caches[0].sequences, self.caches[0].batch)
        self.close()
        self.each(lambda cache: refuse(cache.list_refusals(batch, reserve)))
        if not reserve:
            self.each(lambda cache: cache.evict(batch))
            self.each(lambda cache: cache.add(batch, tags))

    def list_outcomes(self, batch: Batch) -> list[list[Cache]]:
        """Returns what the caches may hold after they have refused this batch.

        Each has either evicted for the batch or not. So nothing is there that was not
        there before, and what `can_resume` promised may have become false.

        Returns:
            Every combination of those caches that would evict something, each with caches
            of its own; first the one without evictions.
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
        """Copies in one cache after the other, up to the first that refuses."""
        check_copy(source, target, length, self.caches[0].sequences)
        self.close()
        self.each(lambda cache: cache.copy_prefix(source, target, length))

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes from one cache after the other, up to the first that refuses."""
        check_range(sequence, begin, end, self.caches[0].sequences)
        self.close()
        self.each(lambda cache: cache.remove(sequence, begin, end))

    def can_resume(self, sequence: int, position: int) -> bool:
        """True if no cache says False."""
        answers = {cache.can_resume(sequence, position) for cache in self.caches}
        return False not in answers

    def each(self, ask: Callable[[Cache], None]) -> None:
        """Asks the caches in order, up to and including the first that refuses."""
        for cache in self.caches:
            ask(cache)
