"""The code that our backends share: declarations, and the construction of caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.backends import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.paged.model import KINDS
from lockstep.impl.prefix import config as prefix
from lockstep.impl.shared import unified
from lockstep.impl.shared.batched_list import open_list
from lockstep.impl.shared.batched_state import StateBatch
from lockstep.impl.shared.batched_tokens import TokenBatch
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.operations import (
    BATCH_CONFIG,
    BATCH_HELD,
    CONFIG,
    HELD,
    PAGED_CONFIG,
    PAGED_OPERATIONS,
    PAGED_TELLS,
)
from lockstep.impl.shared.paged_facts import get_room, open_paged
from lockstep.impl.shared.pooled import PooledCacheBase
from lockstep.impl.shared.rotating import RotatingCacheBase
from lockstep.impl.shared.state import StateCacheBase

Config = Mapping[str, Any]
Values = Mapping[str, tuple[Any, ...]]

SINGLES = {"batch-kv": "kv", "batch-rotating": "rotating", "batch-state": "state"}
"""Kind of a batch → kind of its single caches."""

LAYERS = {
    "kv": KVCacheBase,
    "rotating": RotatingCacheBase,
    "state": StateCacheBase,
    "pooled": PooledCacheBase,
}
BATCHES: Mapping[str, type] = {
    **dict.fromkeys(("batch-kv", "batch-rotating", "batch-list"), TokenBatch),
    "batch-state": StateBatch,
}
"""Kind → the class whose methods are the operations that we declare; a list leaves some
of them to its parts."""


def declare_kinds(
    common: Values | None = None, unified_only: Values | None = None
) -> Mapping[str, Mapping[str, Kind]]:
    """Returns the declared kinds of each contract.

    Args:
        common: additional config values of all kinds.
        unified_only: additional config values of the unified contract.
    """
    common = common or {}
    pools = {**unified.CONFIG, **(unified_only or {})}

    def declare(operations: frozenset[str], values: Values, **promises: Any) -> Kind:
        return Kind(operations, {**values, **common}, refuses=True, **promises)

    return {
        "layer": {
            kind: declare(
                CONTRACTS["layer"].list_implemented(kind, cache),
                CONFIG[kind],
                held=HELD[kind],
            )
            for kind, cache in LAYERS.items()
        },
        "batched": {
            kind: declare(
                CONTRACTS["batched"].list_implemented(kind, cache),
                BATCH_CONFIG[kind],
                held=BATCH_HELD[kind],
            )
            for kind, cache in BATCHES.items()
        },
        "unified": {
            kind: declare(operations, {**pools, **unified.OF_KIND.get(kind, {})}, held=1)
            for kind, operations in unified.OPERATIONS.items()
        },
        "prefix": {
            kind: declare(
                operations, prefix.CONFIG[kind], builds_on=True, held=prefix.HELD[kind]
            )
            for kind, operations in prefix.OPERATIONS.items()
        },
        "paged": {
            kind: declare(PAGED_OPERATIONS, PAGED_CONFIG, tells=PAGED_TELLS)
            for kind in KINDS
        },
    }


@dataclass(frozen=True)
class Framework:
    """The caches of a framework, on one device.

    Attributes:
        dtypes: name → dtype.
        boolean: the dtype of boolean masks, which are True where a row sees a column.
        unfilled: the initial content of memory that is always written before it is read.
        as_like: converts a dtype to the argument that tells a cache its dtype and device.
        zeros: zeros(shape, dtype=dtype) makes an array.
        kv, rotating, state, pooled: the classes of caches of one sequence.
        batch, batch_state: the classes of batches of such caches.
        encoder, causal, recurrent: the classes of caches of many sequences.
        make_blocks: make_blocks(blocks, places, layers, heads, dims, dtype, fill) makes
            the memory of a paged cache.
        make_host_blocks: the same as `make_blocks`, for memory on the host.
        get_options: get_options(config) returns further options of a causal cache.
    """

    dtypes: Mapping[str, Any]
    boolean: Any
    unfilled: float | None
    as_like: Callable[[Any], Any]
    zeros: Callable[..., Any]
    kv: Callable[..., Any]
    rotating: Callable[..., Any]
    state: Callable[..., Any]
    pooled: Callable[..., Any]
    batch: Any
    batch_state: Any
    encoder: Callable[..., Any]
    causal: Callable[..., Any]
    recurrent: Callable[..., Any]
    make_blocks: Callable[..., Any]
    make_host_blocks: Callable[..., Any]
    get_options: Callable[[Config], Mapping[str, Any]]

    def open(self, config: Config) -> Any:
        """Returns the cache for a config of any contract."""
        kind = config["kind"]
        if kind in prefix.OPERATIONS:
            return prefix.open_cache(config)
        if kind in unified.OPERATIONS:
            return self.open_unified(config)
        if kind in BATCHES:
            return self.open_batched(config)
        if kind in LAYERS:
            return self.open_layer(config)
        if config["data"] == "tags":
            return open_paged(config, None)
        host = self.open_blocks(config, "host") if config["host"] else None
        return open_paged(config, self.open_blocks(config, "blocks"), host)

    def open_blocks(self, config: Config, field: str) -> Any:
        """Makes the memory of a paged cache. `field` is the config field with its number
        of blocks."""
        make = self.make_host_blocks if field == "host" else self.make_blocks
        dims = config["key_dim"], config["value_dim"]
        fill = math.nan if config["poison"] else 0.0
        dtype = self.dtypes[config["dtype"]]
        return make(*get_room(config, field), config["heads"], dims, dtype, fill)

    def open_layer(self, config: Config) -> Any:
        if config["kind"] == "state":
            return self.state(*get_shapes(config, 1), self.dtypes[config["dtype"]])
        options = self.get_layer_options(config)
        if config["kind"] == "pooled":
            sizes = config["pool"], config["overlap"], config["lookahead"]
            names = zip(("step", "fill", "mask"), options, strict=True)
            return self.pooled(*sizes, **dict(names))
        if config["kind"] == "rotating":
            has_twin = not config["variant"]
            return self.rotating(config["window"], *options, twin=has_twin)
        return self.kv(*options)

    def open_batched(self, config: Config) -> Any:
        """Returns a batch or a single cache.

        If config["caches"] is set, returns a batch of these single caches, and consumes
        them. If config["rows"] is set, returns a batch of empty rows. Otherwise, returns
        a single cache.
        """
        batches = {
            kind: self.batch_state if kind == "batch-state" else self.batch
            for kind in SINGLES
        }
        if config["kind"] == "batch-list":
            return open_list(config, self.open_batched, batches)
        if config["caches"] is not None:
            return batches[config["kind"]].stack(config["caches"])
        if config["rows"] is None:
            return self.open_layer({**config, "kind": SINGLES[config["kind"]]})
        if config["kind"] != "batch-state":
            options = self.get_layer_options(config)
            return self.batch(config["rows"], config["window"], *options)
        conv, delta = get_shapes(config, config["rows"])
        dtypes = self.dtypes[config["dtype"]], self.dtypes["float32"]
        pair = self.zeros(conv, dtype=dtypes[0]), self.zeros(delta, dtype=dtypes[1])
        return self.batch_state(pair)

    def get_layer_options(self, config: Config) -> tuple[int, float | None, Any]:
        """Returns step, fill and mask of a layer cache or batch."""
        is_additive = config["mask_form"] == "additive"
        mask = self.dtypes[config["dtype"]] if is_additive else self.boolean
        fill = math.nan if config["poison"] else self.unfilled
        return config["step"], fill, self.as_like(mask)

    def open_unified(self, config: Config) -> Any:
        if config["kind"] == "wrapper":
            return unified.make_wrapper(config, self.open_unified)
        if config["kind"] == "encoder":
            return self.encoder(config["sequences"], config["batch"])
        options = {
            "rope": config["rope_bases"] if config["shift"] else None,
            "mask": self.as_like(self.dtypes[config["mask_dtype"]]),
            "fill": math.nan if config["poison"] else 0.0,
            "permuted": config["permuted_values"],
            **self.get_options(config),
        }
        sizes, layers = unified.get_sizes(config), config["layers"]
        if config["kind"] != "recurrent":
            return self.causal(sizes, layers, **options)
        return self.recurrent(sizes, *unified.get_states(config), layers, **options)


def get_shapes(config: Config, rows: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the shapes of the conv and the delta state."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (rows, config["conv_width"] - 1, heads * key_dim)
    return conv, (rows, heads, key_dim, config["value_dim"])
