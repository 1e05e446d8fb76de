"""Adapters to mlx-lm's `CacheList` (`mlx_lm.models.cache`).

They make the same calls as `BatchGenerator` and models. A model reads and writes each
cache of a list separately. All other code calls the list, which calls each of its caches.
The adapters check no call.
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
    """Adapts a `CacheList` of single caches to the interface of a list.

    Args:
        cache: the list of mlx-lm.
        wrap: makes a layer of the contract from each cache of the list.
    """

    def __init__(self, cache: Any, wrap: Wrap) -> None:
        self.wrap = wrap
        self.set_cache(cache)

    def set_cache(self, cache: Any) -> None:
        """Sets the list of mlx-lm. Also called when the caches in the list were
        replaced."""
        self.cache, self.parts = cache, self.wrap(cache)

    def trim(self, count: int) -> int:
        trimmed: Any = trim_prompt_cache([self.cache], count)  # a number, not a list
        self.set_cache(self.cache)
        return int(trimmed)

    def clone(self) -> Self:
        """Copies the list by `deepcopy`, like `LRUPromptCache` and
        `PromptProcessingBatch.split`."""
        return type(self)(copy.deepcopy(self.cache), self.wrap)


class ListBatch(ListLayer):
    """Adapts a `CacheList` of batches to the interface of a batch of lists.

    Args:
        cache: the list of mlx-lm.
        wrap: makes a batch of the contract from each cache of the list.
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
    """A batch of states in a list.

    The model counts tokens by the attention cache of the same list. This class therefore
    starts to count columns at the last call of the list.
    """

    @property
    def offsets(self) -> Array:
        return mx.array(self.counts)

    def count(self, length: int) -> list[int]:
        return [count + length for count in self.counts]
