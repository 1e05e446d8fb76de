"""Declares the backends for the batch caches of mlx-lm.

`mlx_lm_batches` has the adapters. Several backends use the same class in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from lockstep.harness.backends import Backend, Duty, Inputs, Kind
from lockstep.impl.peers.mlx_lm import COMMON, FULL_RING, SHARE, Fields, declare
from lockstep.impl.peers.mlx_lm_batches import (
    Batch,
    RestoredBatch,
    RestoredStateBatch,
    StateBatch,
    TrimmedBatch,
)
from lockstep.impl.peers.mlx_lm_layers import (
    Config,
    Layer,
    RecurrentLayer,
    open_arrays,
)
from lockstep.impl.peers.mlx_lm_lists import ListBatch, ListLayer, StatePart

ROWS = {"open", "update", "pad_right", "finalize", "filter", "extend", "extract", "stack"}
COPIES = {"clone", "save", "load"}
STATE: Fields = {"offsets": ("none",)}
PLAIN: Fields = {**COMMON, "chunk": (None,), "keep": (0,)}
RING: Fields = {**PLAIN, "ring": ("columns",)}
LISTED: Fields = {**COMMON, "ring": ("columns",)}

PADDED_LATE = Duty(
    {"op": "update", "padding": [1, None], "written": [1, None]},
    "padding on the left of a batch that was written to, also if all was trimmed:"
    " prepare raises ValueError",
)
UNFINISHED = tuple(
    Duty(
        {"op": name, "states": ["announced"]},
        f"{name} between prepare and finalize: PromptProcessingBatch.prompt calls both,"
        " and the server removes and extracts requests between its calls",
    )
    for name in ("filter", "extract")
)
FULL_RINGS = (
    Duty(
        {"op": "trim", "rows": [1, None], "width - window": [0, None]},
        "trim of a batch whose ring is full: callers ask is_trimmable() first",
    ),
    Duty({"op": "trim", "rows": [0, 0], "longest - window": [0, None]}, FULL_RING.rule),
)


def mlx_lm_batched() -> Backend:
    """Declares `BatchKVCache` as batch-kv, `BatchRotatingKVCache` as batch-rotating, and
    `ArraysCache` as batch-state. The window of the mask equals the size of the ring."""
    tokens = ROWS | COPIES | {"trim"}
    kinds = {
        "batch-kv": _kind(tokens | {"state"}, PLAIN, PADDED_LATE, inputs="copied"),
        "batch-rotating": _kind(tokens, RING, PADDED_LATE),
        "batch-state": _kind(ROWS | COPIES | {"state"}, STATE),
    }
    return _backend("mlx-lm-batched", kinds, _open)


def _open(config: Config) -> Any:
    if config["kind"] == "batch-state":
        return _open_states(config, StateBatch)
    return _open_tokens(config, Batch, config["window"])


def mlx_lm_batched_restored() -> Backend:
    """Declares the caches of `mlx_lm_batched`, used in other ways.

    They are rebuilt from their `state` before each operation except updates, padded on
    the left by the constructor, and trimmed by `trim`. Rings are not declared, because a
    rebuilt ring cannot be updated.
    """
    kinds = {
        "batch-kv": _kind(ROWS | {"trim"}, PLAIN, PADDED_LATE, inputs="copied"),
        "batch-state": _kind(ROWS, STATE),
    }
    return _backend("mlx-lm-batched-restored", kinds, _open_restored, SHARE)


def _open_restored(config: Config) -> Any:
    if config["kind"] == "batch-state":
        return _open_states(config, RestoredStateBatch)
    return _open_tokens(config, RestoredBatch)


def mlx_lm_batched_max_kv_size() -> Backend:
    """Declares `BatchRotatingKVCache` with masks that have no window, as
    `BatchGenerator(max_kv_size=…)` uses it; trimmed by `trim`.

    The config has no `keep`, because this class does not keep the first tokens.
    """
    ring = _kind(ROWS | {"trim"}, RING, PADDED_LATE, *FULL_RINGS)
    kinds = {"batch-rotating": ring}
    return _backend("mlx-lm-batched-max-kv-size", kinds, _open_unmasked, SHARE)


def _open_unmasked(config: Config) -> Any:
    return _open_tokens(config, TrimmedBatch)


def _open_tokens(config: Config, batch: type[Batch], window: int | None = None) -> Any:
    """Opens a batch, like `_merge_caches`, or a single cache.

    Args:
        config: a complete config.
        batch: the class of the batch.
        window: the window that the model passes to its masks, or None.
    """
    wrap = partial(Layer, window=window)
    if config["caches"] is not None:
        singles = [layer.cache for layer in config["caches"]]
    elif config["rows"] is not None:
        singles = [_open_single(config) for _ in range(config["rows"])]
    else:
        return wrap(_open_single(config))
    return batch(singles[0].merge(singles), wrap, config["step"], window)


def _open_single(config: Config) -> Any:
    window = config["window"]
    cache = KVCache() if window is None else RotatingKVCache(max_size=window)
    cache.step = config["step"]
    return cache


def _open_states(config: Config, batch: type[StateBatch]) -> Any:
    if config["caches"] is not None:
        layers = config["caches"]
    elif config["rows"] is not None:
        layers = [open_arrays(config) for _ in range(config["rows"])]
    else:
        return open_arrays(config)
    singles = [layer.cache for layer in layers]
    counts = [layer.offset for layer in layers]
    return batch(singles[0].merge(singles), config, counts)


# --- lists ------------------------------------------------------------------------------

FULL, STATES = {"kind": "batch-kv"}, {"kind": "batch-state"}
INDEXER = {"kind": "batch-kv", "heads": 1, "key_dim": 6, "value_dim": 0}
RINGS = [{"kind": "batch-rotating", "window": window} for window in (4, 1, 2, 3, 5)]
TWICE = [FULL, FULL], [FULL, INDEXER], [FULL]
WITH_RINGS = tuple([FULL, ring] for ring in RINGS)
WITH_STATES = ([STATES, FULL], *([STATES, ring] for ring in RINGS))


def mlx_lm_batched_list() -> Backend:
    """Declares `CacheList` with full caches.

    The lists are those of models: two equal caches (LongCat), a cache and the keys of an
    indexer without values (DeepSeek 3.2, MiniMax M3), or a single cache (MiniMax M3).
    """
    config = {**LISTED, "caches": TWICE}
    tokens = ROWS | COPIES | {"trim", "state"}
    kinds = {"batch-list": _kind(tokens, config, PADDED_LATE, inputs="copied")}
    return _backend("mlx-lm-batched-list", kinds, _open_list)


def mlx_lm_batched_list_ring() -> Backend:
    """Declares `CacheList` with a full cache and a ring.

    No model has this list, but it is the only list with a ring that can be trimmed.
    """
    config = {**LISTED, "caches": WITH_RINGS}
    kinds = {"batch-list": _kind(ROWS | COPIES | {"trim"}, config, PADDED_LATE)}
    return _backend("mlx-lm-batched-list-ring", kinds, _open_list, share=SHARE)


def mlx_lm_batched_list_states() -> Backend:
    """Declares `CacheList` with a state and a full cache (Falcon H1, Baichuan M1), or
    with a state and a ring (Baichuan M1). These lists cannot be trimmed."""
    config = {**LISTED, "caches": WITH_STATES, "value_dim": (4, 6)}
    kinds = {"batch-list": _kind(ROWS | COPIES, config)}
    return _backend("mlx-lm-batched-list-states", kinds, _open_list)


def _open_list(config: Config) -> Any:
    configs = config["parts"]
    batch, single = partial(_open_parts, configs), partial(_open_single_parts, configs)
    if config["caches"] is not None:
        singles = [layer.cache for layer in config["caches"]]
    elif config["rows"] is not None:
        singles = [_open_single_list(configs) for _ in range(config["rows"])]
    else:
        return ListLayer(_open_single_list(configs), single)
    return ListBatch(singles[0].merge(singles), batch, single)


def _open_single_list(configs: Sequence[Config]) -> Any:
    return CacheList(
        *(
            ArraysCache(size=2)
            if config["kind"] == "batch-state"
            else _open_single(config)
            for config in configs
        )
    )


def _open_parts(configs: Sequence[Config], cache: Any) -> list[Any]:
    """Makes a part for each cache of a list of batches; the last cache must have
    attention."""
    counts = cache[-1].offset.tolist()
    return [
        StatePart(single, config, counts)
        if config["kind"] == "batch-state"
        else Batch(single, Layer, config["step"], config["window"])
        for single, config in zip(cache.caches, configs, strict=True)
    ]


def _open_single_parts(configs: Sequence[Config], cache: Any) -> list[Any]:
    """Makes a part for each cache of a list of single caches; the last cache must have
    attention."""
    wrapped: list[Any] = []
    for single, config in zip(cache.caches, configs, strict=True):
        if config["kind"] == "batch-state":
            wrapped.append(RecurrentLayer(single, config))
            wrapped[-1].read_tokens = cache[-1].offset
        else:
            single.step = config["step"]
            wrapped.append(Layer(single, config["window"]))
    return wrapped


# --- declarations -----------------------------------------------------------------------


def _kind(
    operations: set[str], config: Fields, *duties: Duty, inputs: Inputs = "kept"
) -> Kind:
    """Declares a kind.

    `inputs` is "kept", because a ring keeps the first arrays that it gets, and a state
    keeps all arrays. The memory is not compared, because padding is stored with the
    tokens.
    """
    every = *duties, *UNFINISHED
    return Kind(frozenset(operations), config, inputs=inputs, duties=every)


def _backend(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Callable[[Config], Any],
    share: int = 1,
) -> Backend:
    return declare(name, kinds, opener, share, contract="batched")
