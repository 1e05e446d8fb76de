"""Declares the backends for the layer caches of mlx-lm.

`mlx_lm_layers` has the adapters. Several backends use the same class in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from lockstep.harness.backends import Backend, Duty, Inputs, Kind
from lockstep.impl.mlx.arrays import MLXArrays
from lockstep.impl.peers.mlx_lm_layers import (
    ChunkedLayer,
    ConcatenateLayer,
    Config,
    Layer,
    QuantizedLayer,
    RestoredLayer,
    StoredLayer,
    TurningLayer,
    open_arrays,
)

LEDGER = Path(__file__).parent / "ledger"
Open = Callable[[Config], Any]
Fields = Mapping[str, tuple[Any, ...]]

ROUNDING = {8: 0.01, 6: 0.035, 5: 0.07, 4: 0.13, 3: 0.25, 2: 0.5}
"""Bits → the largest error of a number between -15/16 and 15/16: MLX moves the scale so
that one end of a group is exact; at the other end, the error is half a step or more."""

TURNING_START = 5

SHARE = 4
"""A backend that differs little from another backend runs 1/SHARE of the programs."""

COMMON: Fields = {
    "step": (4, 1, 2, 3, 8, 256),
    "mask_padding": (1,),
    "mask_form": ("any",),
}
PLAIN: Fields = {**COMMON, "chunk": (None,), "keep": (0,)}
RING: Fields = {**COMMON, "chunk": (None,), "keep": (0, 1, 2, 4)}
READING = {"update", "state", "view", "trim", "clone"}

UNWRITTEN = Duty(
    {"op": "view", "states": ["unwritten"]},
    "view before the first update: update_and_fetch alone calls keys_and_values",
)
NOTHING = Duty(
    {"op": "view", "offset": [0, 0]},
    "view of no tokens: MLX dequantizes no array without rows",
)
FULL_RING = Duty(
    {"op": "trim", "offset - window": [0, None]},
    "trim of a ring that is full: callers ask is_trimmable() first",
)


# --- whole caches and rings -------------------------------------------------------------


def mlx_lm() -> Backend:
    """Declares `KVCache` as kv, `ArraysCache` as state, and `RotatingKVCache` as
    rotating.

    The window of the mask equals the size of the ring, which is usual in models with
    sliding layers.
    """
    kinds = {
        "kv": _kind(READING | {"size"}, PLAIN, duties=(UNWRITTEN,)),
        "rotating": _kind(READING | {"size"}, RING, "kept", (UNWRITTEN,)),
        "state": _kind(READING, {}, "kept", memory=None),
    }
    return declare("mlx-lm", kinds, partial(_open, Layer))


def _open(wrap: type[Layer], config: Config) -> Layer:
    if config["kind"] == "state":
        return open_arrays(config, is_restored=wrap is RestoredLayer)
    return wrap(_open_tokens(config), config["window"])


def mlx_lm_restored() -> Backend:
    """Declares the caches of `mlx_lm`, but rebuilds them from their `state` before each
    operation, and copies them through a file."""
    kinds = {
        "kv": _kind(READING, PLAIN, duties=(UNWRITTEN,)),
        "rotating": _kind(READING, RING, "kept", (UNWRITTEN, FULL_RING)),
        "state": _kind(READING - {"trim"}, {}, "kept", memory=None),
    }
    return declare("mlx-lm-restored", kinds, partial(_open, RestoredLayer), SHARE)


def mlx_lm_max_kv_size() -> Backend:
    """Declares `RotatingKVCache` with masks that have no window.

    `make_prompt_cache(model, max_kv_size)` makes such caches for models without a
    `make_cache`.
    """
    ring = _kind({"update", "trim", "clone"}, RING, "kept", (FULL_RING,))
    return declare("mlx-lm-max-kv-size", {"rotating": ring}, _open_unmasked, SHARE)


def _open_unmasked(config: Config) -> Layer:
    return StoredLayer(_open_tokens(config))


def mlx_lm_return_array() -> Backend:
    """Declares `KVCache` and `RotatingKVCache` with masks that are always arrays.

    Some models (gemma2, phi3small, deepseek_v3) request these masks:
    `create_attention_mask(h, c, return_array=True)`.
    """
    kinds = {
        "kv": _kind({"update", "trim", "clone"}, PLAIN),
        "rotating": _kind({"update", "trim", "clone"}, PLAIN, "kept", (FULL_RING,)),
    }
    return declare("mlx-lm-return-array", kinds, _open_for_arrays, SHARE)


def _open_for_arrays(config: Config) -> Layer:
    return StoredLayer(_open_tokens(config), return_array=True)


def mlx_lm_plamo3() -> Backend:
    """Declares `RotatingKVCache` with a window that is one token wider than the ring.

    `mlx_lm.models.plamo3` is the only model where the window differs from the size of the
    ring.
    """
    config = {**PLAIN, "window": (4, 2, 3, 5, 8)}
    ring = _kind({"update", "clone"}, config, "kept")
    return declare("mlx-lm-plamo3", {"rotating": ring}, _open_plamo3, SHARE)


def _open_plamo3(config: Config) -> Layer:
    return StoredLayer(_open_tokens(config, less=1), config["window"])


def mlx_lm_concatenate() -> Backend:
    """Declares `ConcatenateKVCache`, which makes a new array in each update."""
    kinds = {"kv": _kind(READING, PLAIN, "kept", (UNWRITTEN,))}
    return declare("mlx-lm-concatenate", kinds, _open_concatenate)


def _open_concatenate(config: Config) -> Layer:
    return ConcatenateLayer(ConcatenateKVCache())


def mlx_lm_chunked() -> Backend:
    """Declares `ChunkedKVCache`, without `state`, because the cache drops the tokens
    before the last chunk."""
    kind = _kind({"update", "trim", "clone"}, {**PLAIN, "chunk": (1, 2, 3, 4, 5, 8)})
    return declare("mlx-lm-chunked", {"kv": kind}, _open_chunked)


def _open_chunked(config: Config) -> Layer:
    return ChunkedLayer(_stepping(ChunkedKVCache(config["chunk"]), config))


# --- quantized --------------------------------------------------------------------------


def _quantized(
    name: str, bits: int, key_dims: Sequence[int], value_dims: Sequence[int], share: int
) -> Backend:
    """Declares `QuantizedKVCache`, whose groups are as long as the shortest vector."""
    config = {**PLAIN, "key_dim": tuple(key_dims), "value_dim": tuple(value_dims)}
    kinds = {"kv": _kind(READING, config, duties=(NOTHING,))}
    opener = partial(_open_quantized, min(value_dims), bits)
    return declare(name, kinds, opener, share, ROUNDING[bits])


mlx_lm_quantized = partial(_quantized, "mlx-lm-quantized", 8, (32, 64), (32, 64), share=1)
"""Declares `QuantizedKVCache` with 8 bits in groups of 32, the smallest size of MLX."""

mlx_lm_quantized_6, mlx_lm_quantized_5, mlx_lm_quantized_4, mlx_lm_quantized_3 = (
    partial(_quantized, f"mlx-lm-quantized-{bits}", bits, (64, more), (64,), SHARE)
    for bits, more in ((6, 128), (5, 128), (4, 128), (3, 256))
)
"""Declare it in groups of 64, the usual size; with 4 bits, this is the most frequent
setting for saving memory."""

mlx_lm_quantized_2 = partial(_quantized, "mlx-lm-quantized-2", 2, (32, 64), (32,), SHARE)


def _open_quantized(group_size: int, bits: int, config: Config) -> Layer:
    cache = QuantizedKVCache(group_size=group_size, bits=bits)
    return QuantizedLayer(_stepping(cache, config))


def mlx_lm_to_quantized() -> Backend:
    """Declares a `KVCache` that is quantized in the middle of a sequence: 8 bits in
    groups of 128.

    Generation does the same with `quantized_kv_start`.
    """
    config = {**PLAIN, "heads": (1, 2), "key_dim": (128,), "value_dim": (128,)}
    kinds = {"kv": _kind({"update", "trim", "clone"}, config, memory=None)}
    return declare("mlx-lm-to-quantized", kinds, _open_turning, SHARE, ROUNDING[8])


def _open_turning(config: Config) -> Layer:
    return TurningLayer(_open_tokens(config), TURNING_START, 128, 8)


# --- declarations -----------------------------------------------------------------------


def _open_tokens(config: Config, less: int = 0) -> Any:
    """Opens a `KVCache`, or a `RotatingKVCache` whose size is the window minus `less`
    tokens."""
    if config["window"] is None:
        return _stepping(KVCache(), config)
    size = config["window"] - less
    return _stepping(RotatingKVCache(max_size=size, keep=config["keep"]), config)


def _stepping(cache: Any, config: Config) -> Any:
    """Sets the growth step of a cache to config["step"]; the class has 256."""
    cache.step = config["step"]
    return cache


def _kind(
    operations: set[str],
    config: Fields,
    inputs: Inputs = "copied",
    duties: tuple[Duty, ...] = (),
    memory: float | None = 2,
) -> Kind:
    """Declares a kind.

    After a trim, a buffer that is too small grows by all new tokens, even if some of them
    would fit.

    Args:
        inputs: "kept" if the cache keeps the first arrays that it gets. This is safe in
            mlx-lm: a model makes new K and V in each pass and never changes them.
        memory: the allowed memory; None if it is not compared, because a state takes no
            memory before its first update.
    """
    return Kind(frozenset(operations), config, inputs=inputs, held=memory, duties=duties)


def declare(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Open,
    share: int = 1,
    tolerance: float = 0.0,
    contract: str = "layer",
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    library: str = "mlx-lm",
) -> Backend:
    """Declares a backend for caches of a library on MLX, with kinds of one contract."""
    arrays = MLXArrays()
    return Backend(
        name=name,
        device=mx.default_device().type.name,
        contracts={contract: kinds},
        arrays=arrays,
        open=opener,
        dtypes=tuple(dtypes),
        lifetime="until-write",
        causal="lower-right",
        overwrite=arrays.overwrite,
        tolerance=tolerance,
        ledger=LEDGER,
        code=("lockstep",),
        versions={package: version(package) for package in (library, "mlx")},
        share=share,
    )
