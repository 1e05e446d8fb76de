"""mlx-lm's batch caches (`mlx_lm.models.cache`), driven as `BatchGenerator` drives them
(`mlx_lm.generate`).

`BatchGenerator` makes a batch by `merge` of single caches, which are new or belong to a
stored prompt; announces padding on the right by `prepare`; moves rows by `filter`,
`extend` and `extract`; and copies by deepcopy. No code here guards a call: the backends
declare the preconditions of callers.
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
from lockstep.impl.peers.mlx_lm_layers import Config, Layer, RecurrentLayer, get_missing

Wrap = Callable[[Any], Layer]


class Batch:
    """A batch cache of mlx-lm as a batch of the contract.

    Args:
        cache: the cache of mlx-lm.
        wrap: makes a layer of the contract from a single cache of mlx-lm.
        step: the growth step, in place of the class's 256.
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
        """Returns the array itself, which a model also reads after the update."""
        return self.cache.offset

    # --- tokens -------------------------------------------------------------------------

    def pad_left(self, padding: Sequence[int]) -> None:
        self.cache.prepare(left_padding=padding)

    def pad_right(self, lengths: Sequence[int]) -> None:
        pad_right(self.cache, lengths)

    def finalize(self) -> None:
        self.cache.finalize()

    def make_mask(self, length: int) -> Mask:
        """Calls `create_attention_mask` as a model does.

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
        """Returns the buffers of `state`, cut at the paddings and the width."""
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
        """Copies as `PromptProcessingBatch.split` does."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied

    def save(self) -> bytes:
        return save(self.cache)

    def load(self, saved: bytes) -> None:
        self.set_cache(load(saved))


class TrimmedBatch(Batch):
    """A batch that is trimmed by `trim`, as `CacheList` trims its caches."""

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))


class RestoredBatch(TrimmedBatch):
    """A batch whose cache is rebuilt from its `state` before each operation except
    updates, as in `load_prompt_cache`. The constructor pads it on the left."""

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
    """`ArraysCache` as the cache of a gated delta layer (`mlx_lm.models.qwen3_next`).

    The cache has no offsets, since a model with only such layers has none. This class
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
        """Returns the two arrays, or zeros for a missing array, as a model does."""
        shapes = get_missing(self.config, len(self.counts))
        conv, delta = (
            mx.zeros(*missing) if array is None else array
            for array, missing in zip(self.cache.cache, shapes, strict=True)
        )
        return conv, delta

    def write(self, conv: Array, delta: Array, length: int) -> None:
        self.counts = self.count(length)
        self.cache[0], self.cache[1] = conv, delta
        self.cache.advance(length)

    def count(self, length: int) -> list[int]:
        """Returns the counts after an update of `length` columns."""
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
    """A batch whose cache is rebuilt from its `state` before each use."""

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
    """Announces padding as `PromptProcessingBatch.prompt` does."""
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
