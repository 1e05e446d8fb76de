"""Adapters to mlx-lm's batch caches (`mlx_lm.models.cache`).

They make the same calls as `BatchGenerator` (`mlx_lm.generate`): it makes a batch by
`merge` of single caches, which are new or belong to a stored prompt; announces padding on
the right by `prepare`; moves rows by `filter`, `extend` and `extract`; and copies by
`deepcopy`. The adapters check no call; the backends declare which calls are not allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask, create_ssm_mask
from mlx_lm.models.cache import (
    ArraysCache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)

from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.mlx_lm_layers import Config, Layer, RecurrentLayer, read_states

Wrap = Callable[[Any], Layer]


class Batch:
    """Adapts a batch cache of mlx-lm to the interface of a batch.

    Args:
        cache: the cache of mlx-lm.
        wrap: adapts a single cache of mlx-lm to the interface of a layer cache.
        step: the growth step, which replaces the class's step of 256.
        window: the `window_size` of a model's masks, or None.
    """

    def __init__(
        self, cache: Any, wrap: Wrap, step: int, window: int | None = None
    ) -> None:
        self.wrap, self.step, self.window = wrap, step, window
        self.set_cache(cache)

    def set_cache(self, cache: Any) -> None:
        self.cache = cache
        cache.step = self.step

    @property
    def offsets(self) -> Array:
        """Returns the cache's own array, without a copy: a model also reads this array
        after the update."""
        return self.cache.offset

    # --- tokens -------------------------------------------------------------------------

    def pad_left(self, padding: Sequence[int]) -> None:
        self.cache.prepare(left_padding=padding)

    def pad_right(self, lengths: Sequence[int]) -> None:
        pad_right(self.cache, lengths)

    def finalize(self) -> None:
        self.cache.finalize()

    def make_mask(self, length: int) -> Mask:
        """Calls `create_attention_mask`, like a model.

        The function reads only the length of the hidden states.
        """
        hidden = mx.zeros((1, length, 1))
        return create_attention_mask(hidden, self.cache, window_size=self.window)

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        keys, values = self.cache.update_and_fetch(keys, values)
        return keys, values

    def trim(self, count: int) -> int:
        trimmed: Any = trim_prompt_cache([self.cache], count)  # a number, not a list
        return int(trimmed)

    def state(self) -> list[tuple[Array, Array] | None]:
        """Returns, for each row, the columns of `state` that contain tokens."""
        keys, values, _, left_padding, width = self.cache.state
        if keys is None:
            return [None] * len(left_padding.tolist())
        return [
            (keys[row, None, :, begin:width], values[row, None, :, begin:width])
            for row, begin in enumerate(left_padding.tolist())
        ]

    # --- rows ---------------------------------------------------------------------------

    def filter(self, rows: Sequence[int]) -> None:
        self.cache.filter(rows)

    def extend(self, joined: Self) -> None:
        self.cache.extend(joined.cache)

    def extract(self, row: int) -> Layer:
        single = self.cache.extract(row)
        single.step = self.step
        return self.wrap(single)

    def clone(self) -> Self:
        """Copies the batch by `deepcopy`, like `PromptProcessingBatch.split`."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied

    def save(self) -> bytes:
        return save(self.cache)

    def load(self, saved: bytes) -> None:
        self.set_cache(load(saved))


class TrimmedBatch(Batch):
    """Trims a batch by the method `trim` of the cache, like `CacheList`."""

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))


class RestoredBatch(TrimmedBatch):
    """A batch whose cache is rebuilt from its `state` before each operation except
    updates, like in `load_prompt_cache`. The constructor pads the batch on the left."""

    def pad_left(self, padding: Sequence[int]) -> None:
        self.set_cache(type(self.cache)(padding))

    def pad_right(self, lengths: Sequence[int]) -> None:
        self.restore()
        super().pad_right(lengths)

    def trim(self, count: int) -> int:
        self.restore()
        return super().trim(count)

    def filter(self, rows: Sequence[int]) -> None:
        self.restore()
        super().filter(rows)

    def extend(self, joined: Self) -> None:
        self.restore()
        super().extend(joined)

    def extract(self, row: int) -> Layer:
        self.restore()
        return super().extract(row)

    def restore(self) -> None:
        self.set_cache(type(self.cache).from_state(self.cache.state))


class StateBatch(Batch):
    """Adapts an `ArraysCache` with the states of gated delta layers
    (`mlx_lm.models.qwen3_next`) to the interface of a batch.

    The cache has no offsets, because a model with only such layers needs none. This class
    counts the tokens by the masks of the cache.

    Args:
        cache: a cache of two arrays, the inputs of the convolution and the state.
        config: a complete config, which gives the shapes of a missing state.
        counts: for each row, the number of tokens that its state has read.
    """

    def __init__(self, cache: Any, config: Config, counts: Sequence[int]) -> None:
        self.cache, self.config, self.counts = cache, config, list(counts)

    def set_cache(self, cache: Any) -> None:
        self.cache = cache

    def pad_left(self, padding: Sequence[int]) -> None:
        self.cache = ArraysCache(size=2, left_padding=padding)

    def make_mask(self, length: int) -> Array | None:
        return create_ssm_mask(mx.zeros((1, length, 1)), self.cache)

    def read(self) -> tuple[Array, Array]:
        return read_states(self.cache, self.config, len(self.counts))

    def write(self, conv: Array, delta: Array, length: int) -> None:
        self.counts = self.count(length)
        self.cache[0], self.cache[1] = conv, delta
        self.cache.advance(length)

    def count(self, length: int) -> list[int]:
        """Returns the numbers of tokens in each row after an update of `length`
        columns."""
        rows, mask = len(self.counts), self.make_mask(length)
        taken = mx.ones((rows, length)) if mask is None else mask
        new = mx.broadcast_to(taken, (rows, length)).sum(axis=1).tolist()
        return [old + int(added) for old, added in zip(self.counts, new, strict=True)]

    def state(self) -> list[tuple[Array, Array]]:
        conv, delta = self.read()
        return [(conv[row, None], delta[row, None]) for row in range(len(self.counts))]

    def filter(self, rows: Sequence[int]) -> None:
        super().filter(rows)
        self.counts = [self.counts[row] for row in rows]

    def extend(self, joined: Self) -> None:
        super().extend(joined)
        self.counts = [*self.counts, *joined.counts]

    def extract(self, row: int) -> Layer:
        single = RecurrentLayer(self.cache.extract(row), self.config)
        single.read_tokens = self.counts[row]
        return single

    def save(self) -> Any:
        return super().save(), list(self.counts)

    def load(self, saved: Any) -> None:
        content, counts = saved
        super().load(content)
        self.counts = list(counts)


class RestoredStateBatch(StateBatch):
    """A batch of states whose cache is rebuilt from its `state` before each use."""

    def make_mask(self, length: int) -> Array | None:
        self.cache = ArraysCache.from_state(self.cache.state)
        return super().make_mask(length)

    def filter(self, rows: Sequence[int]) -> None:
        self.cache = ArraysCache.from_state(self.cache.state)
        super().filter(rows)

    def extend(self, joined: Self) -> None:
        self.cache = ArraysCache.from_state(self.cache.state)
        super().extend(joined)


def pad_right(cache: Any, lengths: Sequence[int]) -> None:
    """Announces padding on the right, like `PromptProcessingBatch.prompt`."""
    most = max(lengths)
    padding = [most - length for length in lengths]
    cache.prepare(lengths=lengths, right_padding=padding)


def save(cache: Any) -> bytes:
    """Returns the content of the file that `save_prompt_cache` writes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cache.safetensors"
        save_prompt_cache(str(file), [cache])
        return file.read_bytes()


def load(saved: bytes) -> Any:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cache.safetensors"
        file.write_bytes(saved)
        (cache,) = load_prompt_cache(str(file))
        mx.eval(tree_flatten(cache.state))
    return cache
