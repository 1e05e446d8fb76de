"""mlx-vlm's batch caches (`mlx_vlm.models.cache`), driven as its generation drives them
(`mlx_vlm.generate.ar`).

mlx-vlm has its own classes, with an older form of `state` than mlx-lm's. A batch is made
by the constructor, or by `merge` of stored prompts. The functions that copy caches for
the prefix cache (`mlx_vlm.apc_adapters`) store a batch: by `from_state` with copies of
the arrays in `state`.
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
    """A single cache of mlx-vlm."""

    def make_mask(self, length: int, rows: int) -> Mask:
        return create_attention_mask(mx.zeros((1, length, 1)), self.cache, **self.form)

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))


class VLMQuantizedLayer(VLMLayer):
    """`QuantizedKVCache`; see `QuantizedLayer`."""

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return dequantize(self.cache, self.cache.update_and_fetch(keys, values))


class VLMBatch(Batch):
    """A batch cache of mlx-vlm as a batch of the contract.

    `offsets` returns a copy, as in Gemma 4 (`mlx_vlm.models.gemma4.language`), the model
    that uses the offsets after the update.
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
    """A batch under a model that uses the array of offsets itself after the update, as
    Gemma 3n does (`mlx_vlm.models.gemma3n.language`)."""

    @property
    def offsets(self) -> Array:
        return self.cache.offset


class QuantizedBatch(VLMBatch):
    """`BatchQuantizedKVCache`, whose packed K and V are dequantized; see
    `QuantizedLayer`."""

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return dequantize(self.cache, self.cache.update_and_fetch(keys, values))


class VLMStateBatch(StateBatch):
    """`ArraysCache` as `_make_cache` makes it, with an attribute for the padding."""

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
