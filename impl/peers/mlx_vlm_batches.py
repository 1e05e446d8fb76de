"""Adapters to mlx-vlm's batch caches (`mlx_vlm.models.cache`).

They make the same calls as generation (`mlx_vlm.generate.ar`). The classes of mlx-vlm
differ from those of mlx-lm, and their `state` has an older form. A batch is made by the
constructor, or by `merge` of stored prompts. A batch is stored by `from_state` with
copies of the arrays in `state`, like in the prefix cache (`mlx_vlm.apc_adapters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_vlm.apc_adapters import _state_clone, clone_cache_entry
from mlx_vlm.models.base import create_attention_mask, create_ssm_mask

from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.mlx_lm_batches import Batch, StateBatch
from lockstep.impl.peers.mlx_lm_layers import Layer, QuantizedLayer


class VLMLayer(Layer):
    """Adapts a single cache of mlx-vlm to the interface of a layer cache."""

    def make_mask(self, length: int, rows: int) -> Mask:
        return create_attention_mask(mx.zeros((1, length, 1)), self.cache, **self.form)

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))


class VLMQuantizedLayer(VLMLayer):
    """Adapts a `QuantizedKVCache` of mlx-vlm; see `QuantizedLayer`."""

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return dequantize(self.cache, self.cache.update_and_fetch(keys, values))


class VLMBatch(Batch):
    """Adapts a batch cache of mlx-vlm to the interface of a batch.

    `offsets` returns a copy, like Gemma 4 (`mlx_vlm.models.gemma4.language`), which uses
    the offsets after the update.
    """

    @property
    def offsets(self) -> Array:
        return mx.array(self.cache.offset)

    def make_mask(self, length: int) -> Mask:
        hidden = mx.zeros((1, length, 1))
        return create_attention_mask(hidden, self.cache, window_size=self.window)

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))

    def save(self) -> Any:
        return _state_clone(self.cache, [], None)

    def load(self, saved: Any) -> None:
        self.set_cache(_state_clone(saved, [], None))


class BareOffsetBatch(VLMBatch):
    """A batch whose `offsets` returns the cache's own array, without a copy.

    Gemma 3n uses this array after the update (`mlx_vlm.models.gemma3n.language`).
    """

    @property
    def offsets(self) -> Array:
        return self.cache.offset


class QuantizedBatch(VLMBatch):
    """Adapts a `BatchQuantizedKVCache` to the interface of a batch, and dequantizes K and
    V; see `QuantizedLayer`."""

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return dequantize(self.cache, self.cache.update_and_fetch(keys, values))


class VLMStateBatch(StateBatch):
    """Adapts an `ArraysCache` that `_make_cache` has made to the interface of a batch of
    states. Such a cache has an attribute for the padding."""

    def pad_left(self, padding: Sequence[int]) -> None:
        self.cache.left_padding = mx.array(padding)

    def make_mask(self, length: int) -> Array | None:
        return create_ssm_mask(mx.zeros((1, length, 1)), self.cache)

    def save(self) -> Any:
        return copy_states(self.cache), list(self.counts)

    def load(self, saved: Any) -> None:
        cache, counts = saved
        self.cache, self.counts = copy_states(cache), list(counts)


def copy_states(cache: Any) -> Any:
    return clone_cache_entry(cache, min_capacity_tokens=None, eval_targets=[])


def dequantize(cache: Any, pair: Any) -> tuple[Array, Array]:
    return QuantizedLayer(cache).restore(pair)
