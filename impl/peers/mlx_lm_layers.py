"""The caches of mlx-lm (`mlx_lm.models.cache`), driven as mlx-lm's models drive them.

A model gets the mask from `create_attention_mask` (`mlx_lm.models.base`), then calls
`update_and_fetch`. `trim_prompt_cache` asks every layer whether it can be trimmed before
it trims any, so it refuses by returning 0. None of these caches pads query rows, can be
emptied, or has snapshots: a user makes a new cache, or copies one with `copy.deepcopy` as
`LRUPromptCache` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import (
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    trim_prompt_cache,
)

from lockstep.harness.backends import Backend, Inputs, Kind
from lockstep.harness.backends.backend import Code
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.mlx.arrays import MLXArrays
from lockstep.impl.peers.mlx_lm_code import (
    write_chunked,
    write_concatenated,
    write_plain,
    write_quantized,
)

Config = Mapping[str, Any]
LEDGER = Path(__file__).parent / "ledger"
Opener = Callable[[Config], "Layer"]

BITS = 8
GROUP_SIZE = 32
"""The smallest group that MLX quantizes, so that vectors stay small."""
ROUNDING = 0.01
"""More than half a step of 8 bits between -15/16 and 15/16, with scales in bfloat16."""

COMMON = {"step": (4, 1, 2, 3, 8, 256), "mask_padding": (1,), "mask_form": ("any",)}
PLAIN = {**COMMON, "chunk": (None,), "keep": (0,)}


class Layer:
    """A cache of mlx-lm as a layer of the contract.

    Args:
        cache: the cache of mlx-lm.
        window: window of its masks; None for no window.
    """

    def __init__(self, cache: Any, window: int | None = None) -> None:
        self.cache = cache
        self.window = window

    @property
    def offset(self) -> int:
        return int(self.cache.offset)

    def make_mask(self, length: int, rows: int) -> Mask:
        """Calls `create_attention_mask` as a model does.

        Of the hidden states it reads only the length.
        """
        hidden = mx.zeros((1, length, 1))
        return create_attention_mask(hidden, self.cache, window_size=self.window)

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        keys, values = self.cache.update_and_fetch(keys, values)
        return keys, values

    def state(self) -> tuple[Array, Array] | None:
        """Returns the buffers of `cache.state`, cut at its offset."""
        keys, values, offset = self.cache.state[:3]
        if keys is None:
            return None
        return keys[..., :offset, :], values[..., :offset, :]

    def view(self) -> tuple[Array, Array] | None:
        """Returns the same as `update_and_fetch` would; None for an empty cache, which
        cannot be asked."""
        return None if self.cache.empty() else self.cache.keys_and_values()

    def size(self) -> int:
        return int(self.cache.size())

    def trim(self, count: int) -> int:
        """Returns the number of removed tokens; 0 if the class cannot be trimmed."""
        trimmed: Any = trim_prompt_cache([self.cache], count)  # a number, not a list
        return int(trimmed)

    def held(self) -> dict[str, int]:
        """Asks for `nbytes`, which an empty quantized cache cannot tell."""
        return {"bytes": 0 if self.cache.keys is None else int(self.cache.nbytes)}

    def clone(self) -> Layer:
        return type(self)(copy.deepcopy(self.cache), self.window)


class ConcatenateLayer(Layer):
    """`ConcatenateKVCache`, with the two arrays themselves as its `state`."""

    def state(self) -> tuple[Array, Array] | None:
        keys, values = self.cache.state
        return None if keys is None else (keys, values)


class QuantizedLayer(Layer):
    """`QuantizedKVCache`, which returns (packed, scales, biases) for K and for V.

    Attention multiplies the packed form (`quantized_scaled_dot_product_attention` in
    `mlx_lm.models.base`). The contract compares vectors, so they are dequantized here.
    """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return self._restore(self.cache.update_and_fetch(keys, values))

    def view(self) -> tuple[Array, Array] | None:
        if self.offset == 0:  # mx.dequantize does not take an array without rows
            return None
        return self._restore(self.cache.keys_and_values())

    def state(self) -> tuple[Array, Array] | None:
        keys, values, offset = self.cache.state[:3]
        if offset == 0:
            return None
        cut = [[part[..., :offset, :] for part in packed] for packed in (keys, values)]
        return self._restore(cut)

    def _restore(self, pair: Iterable[Any]) -> tuple[Array, Array]:
        size, bits = self.cache.group_size, self.cache.bits
        keys, values = (
            mx.dequantize(packed, scales, biases, group_size=size, bits=bits)
            for packed, scales, biases in pair
        )
        return keys, values


class ChunkedLayer(Layer):
    """`ChunkedKVCache` as Llama 4 uses it (`mlx_lm.models.llama4`, its only user).

    The class has no `make_mask`. The model first drops from the front the keys that no
    query of a later chunk may see, then compares the chunk numbers of queries and kept
    keys.
    """

    def make_mask(self, length: int, rows: int) -> Mask:
        self.cache.maybe_trim_front()
        chunk, offset = self.cache.chunk_size, self.cache.offset
        queries = mx.arange(offset, offset + length)[:, None]  # [length, 1]
        keys = mx.arange(self.cache.start_position, offset + length)  # [columns]
        return (keys <= queries) & (keys // chunk == queries // chunk)


def mlx_lm() -> Backend:
    """`KVCache` for kv, `RotatingKVCache` for rotating, also with kept tokens."""
    operations = {"update", "state", "view", "size", "trim", "clone"}
    rotating = {**COMMON, "chunk": (None,), "keep": (0, 1, 2, 4)}
    kinds = {
        "kv": _kind(operations, PLAIN),
        "rotating": _kind(operations, rotating, "kept"),
    }
    return _backend("mlx-lm", kinds, _open, write_plain)


def mlx_lm_concatenate() -> Backend:
    """`ConcatenateKVCache`: no buffer to grow, a new array at each update."""
    kind = _kind({"update", "state", "view", "trim", "clone"}, PLAIN, "kept")
    return _backend(
        "mlx-lm-concatenate", {"kv": kind}, _open_concatenate, write_concatenated
    )


def mlx_lm_quantized() -> Backend:
    """`QuantizedKVCache` with 8 bits: contents are rounded, never exact."""
    dims = {"key_dim": (32, 64), "value_dim": (32, 64)}
    kind = _kind({"update", "state", "view", "trim", "clone"}, {**PLAIN, **dims})
    code = partial(write_quantized, group_size=GROUP_SIZE, bits=BITS)
    backend = _backend("mlx-lm-quantized", {"kv": kind}, _open_quantized, code)
    return replace(backend, tolerance=ROUNDING)


def mlx_lm_chunked() -> Backend:
    """`ChunkedKVCache`; it has no state, since it drops tokens before the last chunk."""
    kind = _kind({"update", "trim", "clone"}, {**PLAIN, "chunk": (1, 2, 3, 4, 5, 8)})
    return _backend("mlx-lm-chunked", {"kv": kind}, _open_chunked, write_chunked)


def _open(config: Config) -> Layer:
    if config["kind"] == "kv":
        return Layer(_stepping(KVCache(), config))
    cache = RotatingKVCache(max_size=config["window"], keep=config["keep"])
    return Layer(_stepping(cache, config), config["window"])


def _open_concatenate(config: Config) -> Layer:
    return ConcatenateLayer(ConcatenateKVCache())


def _open_quantized(config: Config) -> Layer:
    cache = QuantizedKVCache(group_size=GROUP_SIZE, bits=BITS)
    return QuantizedLayer(_stepping(cache, config))


def _open_chunked(config: Config) -> Layer:
    return ChunkedLayer(_stepping(ChunkedKVCache(config["chunk"]), config))


def _stepping(cache: Any, config: Config) -> Any:
    """Sets the growth step to config["step"] instead of the class's 256."""
    cache.step = config["step"]
    return cache


def _kind(
    operations: set[str],
    config: Mapping[str, tuple[Any, ...]],
    inputs: Inputs = "copied",
) -> Kind:
    """Declares a kind.

    `inputs` is "kept" where the first arrays become the cache's own. A model makes K and
    V anew in each pass and never writes to them afterwards. After a trim a buffer that is
    too small grows by all new tokens, and not only by those that do not fit.
    """
    return Kind(frozenset(operations), config, inputs=inputs, held=2)


def _backend(
    name: str, kinds: Mapping[str, Kind], opener: Opener, code: Callable[[Config], Code]
) -> Backend:
    arrays = MLXArrays()
    return Backend(
        name=name,
        device=mx.default_device().type.name,
        contracts={"layer": kinds},
        arrays=arrays,
        open=opener,
        dtypes=("float32", "float16", "bfloat16"),
        lifetime="until-write",
        causal="lower-right",
        overwrite=arrays.overwrite,
        ledger=LEDGER,
        code=code,
        versions={package: version(package) for package in ("mlx-lm", "mlx")},
    )
