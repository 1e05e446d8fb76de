"""Declares the backends for mlx-vlm's batch caches.

`mlx_vlm_batches` has the adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mlx_vlm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchQuantizedKVCache,
    BatchRotatingKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.peers.mlx_lm import ROUNDING, SHARE, Open, declare
from lockstep.impl.peers.mlx_lm_batched import PADDED_LATE, PLAIN, RING, ROWS, STATE
from lockstep.impl.peers.mlx_lm_layers import Config, RecurrentLayer
from lockstep.impl.peers.mlx_vlm_batches import (
    BareOffsetBatch,
    QuantizedBatch,
    VLMBatch,
    VLMLayer,
    VLMQuantizedLayer,
    VLMStateBatch,
)

SAVING = {"save", "load"}
GROUP_SIZE, BITS = 32, 8

PADDED_ROW = Duty(
    {"op": "extract", "states": ["announced"], "ended": [1, None]},
    "extract between prepare and finalize, if a row may have padding:"
    " PromptProcessingBatch stores a row as soon as it has its tokens",
)


def mlx_vlm_batched() -> Backend:
    """Declares `BatchKVCache`, `BatchRotatingKVCache` and `ArraysCache` in float32, for
    models that copy the array of offsets.

    `trim` of a ring is not declared, because mlx-vlm computes tokens again where other
    engines trim. `save` of a ring is not declared, because a restored ring cannot be
    updated. `stack` of states is not declared, so that the ledger can identify the states
    that have read padding on the right.
    """
    kinds = {
        "batch-kv": _kind(ROWS | SAVING | {"trim"}, PLAIN, PADDED_LATE),
        "batch-rotating": _kind(ROWS, RING, PADDED_LATE),
        "batch-state": _kind((ROWS | SAVING) - {"stack"}, STATE),
    }
    return _backend("mlx-vlm-batched", kinds, partial(_open, VLMBatch))


def mlx_vlm_batched_bare_offset() -> Backend:
    """Declares the caches of `mlx_vlm_batched` for models that read the array of offsets
    after the update, without a copy."""
    kinds = {
        "batch-kv": _kind(ROWS, PLAIN, PADDED_LATE),
        "batch-rotating": _kind(ROWS, RING, PADDED_LATE),
    }
    opener = partial(_open, BareOffsetBatch)
    return _backend("mlx-vlm-batched-bare-offset", kinds, opener, SHARE)


def mlx_vlm_batched_half() -> Backend:
    """Declares the caches of `mlx_vlm_batched` in half precision."""
    kinds = {
        "batch-kv": _kind(ROWS - {"stack"}, PLAIN, PADDED_LATE),
        "batch-rotating": _kind(ROWS - {"stack"}, RING, PADDED_LATE),
    }
    opener = partial(_open, VLMBatch)
    half = {"dtypes": ("float16", "bfloat16")}
    return _backend("mlx-vlm-batched-half", kinds, opener, SHARE, **half)


def mlx_vlm_batched_quantized() -> Backend:
    """Declares `BatchQuantizedKVCache` with 8 bits in groups of 32. The class has no
    `merge`."""
    config = {**PLAIN, "key_dim": (32, 64), "value_dim": (32, 64)}
    operations = (ROWS | SAVING | {"trim"}) - {"stack"}
    return _backend(
        "mlx-vlm-batched-quantized",
        {"batch-kv": _kind(operations, config, PADDED_LATE)},
        _open_quantized,
        dtypes=("float32", "float16", "bfloat16"),
        tolerance=ROUNDING[BITS],
    )


def _open(batch_class: type[VLMBatch], config: Config) -> Any:
    """Opens an empty batch, a batch of the single caches in `caches`, or a
    single cache."""
    rows, window = config["rows"], config["window"]
    if config["kind"] == "batch-state":
        return _open_states(config)
    wrap = partial(VLMLayer, window=window)
    if config["caches"] is not None:
        singles = [layer.cache for layer in config["caches"]]
        batch = singles[0].merge(singles)
    elif rows is None:
        single = KVCache() if window is None else RotatingKVCache(max_size=window)
        single.step = config["step"]
        return wrap(single)
    elif window is None:
        batch = BatchKVCache([0] * rows)
    else:
        batch = BatchRotatingKVCache(window, [0] * rows)
    return batch_class(batch, wrap, config["step"], window)


def _open_states(config: Config) -> Any:
    if config["caches"] is not None:
        singles = [layer.cache for layer in config["caches"]]
        counts = [layer.offset for layer in config["caches"]]
        return VLMStateBatch(singles[0].merge(singles), config, counts)
    if config["rows"] is None:
        return RecurrentLayer(ArraysCache(size=2), config)
    batch = VLMStateBatch(ArraysCache(size=2), config, [0] * config["rows"])
    batch.pad_left(batch.counts)
    return batch


def _open_quantized(config: Config) -> Any:
    setting = {"group_size": GROUP_SIZE, "bits": BITS}
    if config["rows"] is None:
        single = QuantizedKVCache(**setting)
        single.step = config["step"]
        return VLMQuantizedLayer(single)
    batch = BatchQuantizedKVCache([0] * config["rows"], **setting)
    return QuantizedBatch(batch, VLMQuantizedLayer, config["step"])


def _kind(operations: set[str], config: Mapping[str, Any], *duties: Any) -> Kind:
    """Declares a kind; see `mlx_lm_batched._kind`."""
    every = *duties, PADDED_ROW
    return Kind(frozenset(operations), config, inputs="kept", duties=every)


def _backend(
    name: str, kinds: Mapping[str, Kind], opener: Open, share: int = 1, **more: Any
) -> Backend:
    """Declares a backend in float32; more: see `declare`."""
    more = {"dtypes": ("float32",), **more}
    return declare(
        name, kinds, opener, share, contract="batched", library="mlx-vlm", **more
    )
