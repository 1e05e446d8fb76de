"""Adapters to mlx-lm's caches of one sequence (`mlx_lm.models.cache`).

They make the same calls as a model: it gets the mask from `create_attention_mask`
(`mlx_lm.models.base`), then calls `update_and_fetch`. These caches do not pad the rows of
masks, cannot be emptied, and have no snapshots: users make a new cache, or copy a cache.
The adapters check no call; the backends declare which calls are not allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import (
    ArraysCache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)

from lockstep.harness.backends.interface import Array, Mask

Config = Mapping[str, Any]
Make = Callable[[Any], "Layer"]


class Layer:
    """Adapts a cache of mlx-lm to the interface of a layer cache.

    Args:
        cache: the cache of mlx-lm.
        window: the `window_size` of a model's masks, or None.
        return_array: the argument `return_array` of `create_attention_mask`; if true, no
            mask is "causal".
    """

    def __init__(
        self, cache: Any, window: int | None = None, return_array: bool = False
    ) -> None:
        self.cache = cache
        self.form = {"window_size": window, "return_array": return_array}

    @property
    def offset(self) -> int:
        return int(self.cache.offset)

    def make_mask(self, length: int, rows: int) -> Mask:
        """Calls `create_attention_mask`, like a model.

        The function reads only the length of the hidden states.
        """
        return create_attention_mask(mx.zeros((1, length, 1)), self.cache, **self.form)

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        keys, values = self.cache.update_and_fetch(keys, values)
        return keys, values

    def state(self) -> tuple[Array, Array] | None:
        """Returns the tokens in the buffers of `cache.state`, up to the offset."""
        keys, values, offset = self.cache.state[:3]
        if keys is None:
            return None
        return keys[..., :offset, :], values[..., :offset, :]

    def view(self) -> tuple[Array, Array]:
        """Returns the K and V that `update_and_fetch` would return."""
        keys, values = self.cache.keys_and_values()
        return keys, values

    def size(self) -> int:
        return int(self.cache.size())

    def trim(self, count: int) -> int:
        """Trims by `trim_prompt_cache`, like speculative decoding; returns the number of
        removed tokens.

        `trim_prompt_cache` trims only if every layer can be trimmed, and otherwise
        returns 0.
        """
        trimmed: Any = trim_prompt_cache([self.cache], count)  # a number, not a list
        return int(trimmed)

    def held(self) -> dict[str, int]:
        return {"bytes": int(self.cache.nbytes)}

    def clone(self) -> Layer:
        """Copies the cache by `deepcopy`, like `LRUPromptCache`."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied


class StoredLayer(Layer):
    """A layer that is copied through a file, and trimmed by the method `trim`.

    `save_prompt_cache` and `load_prompt_cache` copy through a file. `CacheList` calls
    `trim`.
    """

    def trim(self, count: int) -> int:
        return int(self.cache.trim(count))

    def clone(self) -> Layer:
        copied = copy.copy(self)
        copied.cache = store_and_load(self.cache)
        return copied


class RestoredLayer(StoredLayer):
    """A layer whose cache is rebuilt from its `state` before each operation.

    `load_prompt_cache` rebuilds caches in the same way. Content that is missing from
    `state` is lost.
    """

    def make_mask(self, length: int, rows: int) -> Mask:
        self.cache = restore(self.cache)
        return super().make_mask(length, rows)

    def trim(self, count: int) -> int:
        self.cache = restore(self.cache)
        return super().trim(count)


class ConcatenateLayer(StoredLayer):
    """Adapts a `ConcatenateKVCache` to the interface of a layer cache. The `state` of
    this class returns the stored arrays."""

    def state(self) -> tuple[Array, Array] | None:
        keys, values = self.cache.state
        return None if keys is None else (keys, values)


class QuantizedLayer(StoredLayer):
    """Adapts a `QuantizedKVCache` to the interface of a layer cache.

    The cache returns (packed, scales, biases) for K and for V, and models use this packed
    form (`quantized_scaled_dot_product_attention` in `mlx_lm.models.base`). The contract
    compares vectors, so this class dequantizes K and V.
    """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return self.restore(self.cache.update_and_fetch(keys, values))

    def view(self) -> tuple[Array, Array]:
        return self.restore(self.cache.keys_and_values())

    def state(self) -> tuple[Array, Array] | None:
        """Returns the dequantized tokens in `cache.state`, or None without tokens,
        because MLX cannot dequantize an array without rows."""
        keys, values, offset = self.cache.state[:3]
        if offset == 0:
            return None
        cut = [[array[..., :offset, :] for array in packed] for packed in (keys, values)]
        return self.restore(cut)

    def held(self) -> dict[str, int]:
        """Returns the bytes of the arrays of `state`, because `nbytes` raises before the
        first update."""
        arrays = [array for _, array in tree_flatten(self.cache.state[:2])]
        return {"bytes": sum(array.nbytes for array in arrays if array is not None)}

    def restore(self, pair: Iterable[Any]) -> tuple[Array, Array]:
        size, bits = self.cache.group_size, self.cache.bits
        keys, values = (
            mx.dequantize(packed, scales, biases, group_size=size, bits=bits)
            for packed, scales, biases in pair
        )
        return keys, values


class TurningLayer(Layer):
    """A `KVCache` that becomes a `QuantizedKVCache` in the middle of a sequence.

    Args:
        cache: the cache of mlx-lm.
        start: the number of tokens at which the cache is quantized.
        group_size, bits: the settings of the quantized cache.
    """

    def __init__(self, cache: Any, start: int, group_size: int, bits: int) -> None:
        super().__init__(cache)
        self.setting = start, group_size, bits

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Updates and quantizes, in the same order as `generate_step`."""
        pair = self.cache.update_and_fetch(keys, values)
        is_packed = hasattr(self.cache, "bits")  # as attention tells the two apart
        returned = QuantizedLayer(self.cache).restore(pair) if is_packed else tuple(pair)
        caches = [self.cache]
        maybe_quantize_kv_cache(caches, *self.setting)
        (self.cache,) = caches
        return returned


class ChunkedLayer(StoredLayer):
    """Adapts a `ChunkedKVCache` to the interface of a layer cache. Makes the same calls
    as Llama 4 (`mlx_lm.models.llama4`), the only model with this class.

    The class has no `make_mask`. The model first drops the keys that no query of a later
    chunk may see. It then compares the chunk numbers of the queries and of the remaining
    keys.
    """

    def make_mask(self, length: int, rows: int) -> Mask:
        self.cache.maybe_trim_front()
        chunk, offset = self.cache.chunk_size, self.cache.offset
        queries = mx.arange(offset, offset + length)[:, None]  # [length, 1]
        keys = mx.arange(self.cache.start_position, offset + length)  # [columns]
        return (keys <= queries) & (keys // chunk == queries // chunk)


class RecurrentLayer(Layer):
    """Adapts an `ArraysCache` with the state of a gated delta layer
    (`mlx_lm.models.qwen3_next`) to the interface of a state cache.

    The cache has no offset, because a model with only such layers needs none. This class
    counts the tokens.

    Args:
        cache: a cache of two arrays, the inputs of the convolution and the state.
        config: a complete config, which gives the shapes of a missing state.
        is_restored: whether the cache is rebuilt, like in `RestoredLayer`, and copied
            through a file.
    """

    def __init__(self, cache: Any, config: Config, is_restored: bool = False) -> None:
        super().__init__(cache)
        self.read_tokens, self.is_restored = 0, is_restored
        self.config = config

    @property
    def offset(self) -> int:
        return self.read_tokens

    def boundaries(self, length: int) -> Sequence[int]:
        return [length]

    def read(self) -> tuple[Array, Array]:
        return read_states(self.cache, self.config, 1)

    def state(self) -> tuple[Array, Array]:
        return self.read()

    def view(self) -> tuple[Array, Array]:
        return self.read()

    def write(self, conv: Array, delta: Array, length: int) -> None:
        """Appends the new inputs of the convolution, and drops the inputs that no later
        token needs."""
        if self.is_restored:
            self.cache = restore(self.cache)
        inputs = mx.concatenate([self.read()[0], conv[:, -length:]], axis=1)
        self.cache[0] = mx.contiguous(inputs[:, -conv.shape[1] :])
        self.cache[1] = delta
        self.cache.advance(length)
        self.read_tokens += length

    def clone(self) -> Layer:
        copied = copy.copy(self)
        duplicate = store_and_load if self.is_restored else copy.deepcopy
        copied.cache = duplicate(self.cache)
        return copied


def restore(cache: Any) -> Any:
    """Makes a cache from the state of another cache, which must not be used
    afterwards."""
    return set_step(type(cache).from_state(cache.state), cache)


def store_and_load(cache: Any) -> Any:
    """Copies a cache through a file."""
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "cache.safetensors")
        save_prompt_cache(file, [cache])
        (loaded,) = load_prompt_cache(file)
        mx.eval(tree_flatten(loaded.state))
    return set_step(loaded, cache)


def set_step(cache: Any, like: Any) -> Any:
    """Copies the growth step from another cache, because `state` does not contain it."""
    if "step" in vars(like):
        cache.step = like.step
    return cache


def read_states(cache: Any, config: Config, rows: int) -> tuple[Array, Array]:
    """Returns the two arrays of an `ArraysCache`; a missing array is replaced by zeros,
    like in the model."""
    heads, key_dim = config["heads"], config["key_dim"]
    missing = (
        ((rows, config["conv_width"] - 1, heads * key_dim), getattr(mx, config["dtype"])),
        ((rows, heads, key_dim, config["value_dim"]), mx.float32),
    )
    conv, delta = (
        mx.zeros(*form) if array is None else array
        for array, form in zip(cache.cache, missing, strict=True)
    )
    return conv, delta


def open_arrays(config: Config, is_restored: bool = False) -> RecurrentLayer:
    return RecurrentLayer(ArraysCache(size=2), config, is_restored)
