"""mlx-lm's `CacheList` (`mlx_lm.models.cache`), driven as `BatchGenerator` drives it.

A model reads and writes each cache of a list separately. All other callers call the list,
which passes the call to each of its caches. No code here guards a call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import trim_prompt_cache

from lockstep.harness.backends.interface import Array
from lockstep.impl.peers.mlx_lm_batches import StateBatch, load, pad_right, save

Wrap = Callable[[Any], list[Any]]
"""Makes the contract's layers or batches from a `CacheList`."""


class ListLayer:
    """A `CacheList` of single caches.

    Args:
        cache: the list of mlx-lm.
        wrap: makes a layer of the contract from each cache of the list.
    """

    def __init__(self, cache: Any, wrap: Wrap) -> None:
        self.wrap = wrap
        self.set_cache(cache)

    def set_cache(self, cache: Any) -> None:
        """Sets the list; called again after the caches of the list have changed."""
        self.cache, self.parts = cache, self.wrap(cache)

    def trim(self, count: int) -> int:
        trimmed: Any = trim_prompt_cache([self.cache], count)  # a number, not a list
        self.set_cache(self.cache)
        return int(trimmed)

    def clone(self) -> Self:
        """Copies as `LRUPromptCache` and `PromptProcessingBatch.split` do."""
        return type(self)(copy.deepcopy(self.cache), self.wrap)


class ListBatch(ListLayer):
    """A `CacheList` of batches.

    Args:
        cache, wrap: as in `ListLayer`.
        wrap_single: makes layers of the contract from the caches of a single list.
    """

    def __init__(self, cache: Any, wrap: Wrap, wrap_single: Wrap) -> None:
        super().__init__(cache, wrap)
        self.wrap_single = wrap_single

    def pad_left(self, padding: Sequence[int]) -> None:
        self.cache.prepare(left_padding=padding)
        self.set_cache(self.cache)

    def pad_right(self, lengths: Sequence[int]) -> None:
        pad_right(self.cache, lengths)

    def finalize(self) -> None:
        self.cache.finalize()
        self.set_cache(self.cache)

    def filter(self, rows: Sequence[int]) -> None:
        self.cache.filter(rows)
        self.set_cache(self.cache)

    def extend(self, joined: Self) -> None:
        self.cache.extend(joined.cache)
        self.set_cache(self.cache)

    def extract(self, row: int) -> ListLayer:
        return ListLayer(self.cache.extract(row), self.wrap_single)

    def clone(self) -> Self:
        return type(self)(copy.deepcopy(self.cache), self.wrap, self.wrap_single)

    def save(self) -> bytes:
        return save(self.cache)

    def load(self, saved: bytes) -> None:
        self.set_cache(load(saved))


class StatePart(StateBatch):
    """A state in a list. Its model counts tokens by the attention cache of the list, so
    this class counts the columns since the last call of the list."""

    @property
    def offsets(self) -> Array:
        return mx.array(self.counts)

    def count(self, length: int) -> list[int]:
        return [count + length for count in self.counts]
