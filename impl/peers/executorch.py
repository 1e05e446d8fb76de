"""The adapters to the caches of ExecuTorch's Llama, and their declarations.

`AttentionMHA.forward` selects rows of a causal mask by `input_pos`, unless the cache is a
ring: the mask of a ring is made after the update. Callers count the positions. Line
numbers are those of `examples/models/llama/attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.engines.layers import load_executorch
from lockstep.impl.peers.static import PLAIN, ROOM, declare_static, overflow

Config = Mapping[str, Any]
executorch = load_executorch()

ROUNDING = 0.008
"""More than a step of int8 between -15/16 and 15/16, because the zero is rounded, too."""

SHARE = 4


class Layer:
    """A cache of all tokens.

    Args:
        cache: the cache.
        length: the number of its columns.
        dynamic: whether `input_pos` has only the first position (`enable_dynamic_shape`).
    """

    def __init__(self, cache: Any, length: int, dynamic: bool) -> None:
        self.cache, self.dynamic = cache, dynamic
        self.offset = 0
        ones = torch.ones(length, length, dtype=torch.bool)
        self.mask = torch.tril(ones)  # line 442

    def make_mask(self, length: int, rows: int) -> Mask:
        """Selects rows of the mask (lines 622 to 630)."""
        if self.dynamic:
            return self.mask.narrow(0, self.offset, length)
        return self.mask[torch.arange(self.offset, self.offset + length)]

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        end = self.offset + keys.shape[2]
        positions = torch.arange(self.offset, self.offset + 1 if self.dynamic else end)
        updated: tuple[Array, Array] = self.cache.update(positions, keys, values)
        self.offset = end
        return updated

    def free(self) -> None:
        """Begins again at position 0, like the runner."""
        self.offset = 0


class Ring(Layer):
    """A ring, whose mask is made after the update (line 641)."""

    def make_mask(self, length: int, rows: int) -> Mask:
        """Returns the array that `update` fills."""
        self.mask = torch.empty(length, self.cache.max_context_length)
        return self.mask

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        start, length = self.offset, keys.shape[2]
        updated = super().update(keys, values)
        self.mask.copy_(self.cache.create_causal_mask_for_ring_buffer(start, length))
        return updated


# --- declarations -----------------------------------------------------------------------


def executorch_cache() -> Backend:
    """Declares `KVCache` as kv and `RingKVCache` as rotating."""
    return _declare("executorch", False)


def executorch_dynamic() -> Backend:
    """Declares the same caches with `enable_dynamic_shape`."""
    return _declare("executorch-dynamic", True, SHARE)


def executorch_sink() -> Backend:
    """Declares `KVCacheWithAttentionSink` as rotating, with and without sinks."""
    kind = replace(RING, config={**RING.config, "keep": (1, 0, 2, 4)})
    return _backend("executorch-sink", {"rotating": kind}, _open_sink)


def executorch_quantized() -> Backend:
    """Declares `QuantizedKVCache` without ExecuTorch's operators; the tokens of an update
    are returned without rounding."""
    config = {**FULL.config, "special_numbers": (False,), "step": (16, 8, 11)}
    kinds = {"kv": replace(FULL, config=config)}
    return _backend("executorch-quantized", kinds, _open_quantized, SHARE, ROUNDING)


OPERATIONS = frozenset({"update", "free"})
DIMENSIONS: Mapping[str, tuple[Any, ...]] = {"key_dim": (4,), "value_dim": (4,)}
FULL = Kind(
    OPERATIONS,
    {**PLAIN, **ROOM, **DIMENSIONS},
    duties=(overflow("update of more than max_context_length tokens"),),
)
RING = Kind(
    OPERATIONS,
    {**PLAIN, **DIMENSIONS},
    duties=(
        Duty(
            {"op": "update", "length - window - window + keep + keep": [1, None]},
            "update of more than twice the window: update asserts this",
        ),
    ),
)


def _declare(name: str, dynamic: bool, share: int = 1) -> Backend:
    kinds = {"kv": FULL, "rotating": RING}
    return _backend(name, kinds, partial(_open, dynamic), share)


def _backend(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Callable[[Config], Layer],
    share: int = 1,
    tolerance: float = 0.0,
) -> Backend:
    library, dtypes = "executorch", ("float32",)
    return declare_static(library, name, kinds, opener, share, tolerance, dtypes)


def _open(dynamic: bool, config: Config) -> Layer:
    length, heads, dim = config["step"], config["heads"], config["key_dim"]
    if config["window"] is None:
        cache = executorch.KVCache(1, length, heads, dim, dynamic)
        return Layer(cache, length, dynamic)
    cache = executorch.RingKVCache(1, config["window"], heads, dim, dynamic)
    return Ring(cache, 0, dynamic)


def _open_sink(config: Config) -> Layer:
    keep, dim = config["keep"], config["key_dim"]
    cache = executorch.KVCacheWithAttentionSink(
        config["heads"], dim, False, None, config["window"] - keep, keep
    )
    return Ring(cache, 0, False)


def _open_quantized(config: Config) -> Layer:
    cache = executorch.QuantizedKVCache(
        1,
        config["step"],
        config["heads"],
        config["key_dim"],
        executorch.QuantizedCacheType.AffineAsymmetric,
    )
    return Layer(cache, config["step"], False)
