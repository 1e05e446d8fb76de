"""The backends of our MLX caches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from lockstep.harness.backends import Backend, Kind, Unavailable
from lockstep.impl.mlx.arrays import DTYPES, MLXArrays
from lockstep.impl.mlx.batched import BatchedCache
from lockstep.impl.mlx.batched_state import BatchedState
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.encoder import EncoderCache
from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.paged import MlxBlocks
from lockstep.impl.mlx.recurrent import RecurrentCache
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.mlx.state import StateCache
from lockstep.impl.prefix import config as prefix
from lockstep.impl.shared import unified
from lockstep.impl.shared.batched_list import open_list
from lockstep.impl.shared.operations import (
    BATCH_CONFIG,
    BATCH_HELD,
    BATCHED_OPERATIONS,
    CONFIG,
    HELD,
    OPERATIONS,
    PAGED_CONFIG,
    PAGED_KINDS,
    PAGED_OPERATIONS,
    PAGED_TELLS,
)
from lockstep.impl.shared.paged_facts import get_room, open_paged

UNIFIED = {
    kind: Kind(
        operations,
        {**unified.CONFIG, **unified.OF_KIND.get(kind, {})},
        refuses=True,
        held=1,
    )
    for kind, operations in unified.OPERATIONS.items()
}
LAYER = {
    kind: Kind(operations, CONFIG[kind], refuses=True, held=HELD[kind])
    for kind, operations in OPERATIONS.items()
}

BATCHES = {
    kind: Kind(operations, BATCH_CONFIG[kind], refuses=True, held=BATCH_HELD[kind])
    for kind, operations in BATCHED_OPERATIONS.items()
}

PREFIX = {
    kind: Kind(
        operations,
        prefix.CONFIG[kind],
        builds_on=True,
        refuses=True,
        held=prefix.HELD[kind],
    )
    for kind, operations in prefix.OPERATIONS.items()
}

PAGED = {
    f"paged-{kind}": Kind(PAGED_OPERATIONS, PAGED_CONFIG, refuses=True, tells=PAGED_TELLS)
    for kind in PAGED_KINDS
}


class OnDevice:
    """A cache that computes on one device, whatever the default of the process.

    It starts the evaluation of each result at once, K and V together, as a loop that
    generates tokens does.
    """

    def __init__(self, cache: Any, device: mx.Device) -> None:
        self.cache, self.device = cache, device

    def clone(self) -> OnDevice:
        with mx.stream(self.device):
            return OnDevice(self.cache.clone(), self.device)

    def extract(self, row: int) -> OnDevice:
        with mx.stream(self.device):
            return OnDevice(self.cache.extract(row), self.device)

    def extend(self, other: OnDevice) -> None:
        with mx.stream(self.device):
            self.cache.extend(other.cache)

    @cached_property
    def parts(self) -> tuple[OnDevice, ...]:
        return tuple(OnDevice(part, self.device) for part in self.cache.parts)

    def of(self, layer_type: int) -> OnDevice:
        return OnDevice(self.cache.of(layer_type), self.device)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.cache, name)
        if not callable(member):
            return member
        method = partial(compute, self.device, member)
        setattr(self, name, method)  # looked up once only
        return method


def compute(device: mx.Device, method: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `method` on the device and starts the evaluation of arrays it returns."""
    with mx.stream(device):
        result = method(*arguments)
        mx.async_eval(result)  # type: ignore[no-untyped-call]
    return result


def open_cache(config: Mapping[str, Any], device: mx.Device) -> Any:
    """Returns the cache for a config of any contract."""
    if config["kind"] in PREFIX:  # its caches are on the device already
        return prefix.open_cache(config)
    if config["kind"] in PAGED and config["data"] == "tags":
        return open_paged(config, None)
    with mx.stream(device):
        return OnDevice(make_cache(config), device)


def make_cache(config: Mapping[str, Any]) -> Any:
    if config["kind"] in UNIFIED:
        return make_unified(config)
    if config["kind"] in BATCHED_OPERATIONS:
        caches = config["caches"]
        alone = None if caches is None else [single.cache for single in caches]
        return open_batched({**config, "caches": alone})
    if config["kind"] in PAGED:
        host = make_blocks(config, "host") if config["host"] else None
        return open_paged(config, make_blocks(config, "blocks"), host)
    return make_layer(config)


def make_blocks(config: Mapping[str, Any], field: str) -> MlxBlocks:
    """Makes memory of a paged cache; a field of the config says how many blocks."""
    dims = config["key_dim"], config["value_dim"]
    fill = math.nan if config["poison"] else 0.0
    dtype = DTYPES[config["dtype"]]
    return MlxBlocks(*get_room(config, field), config["heads"], dims, dtype, fill)


def make_layer(config: Mapping[str, Any]) -> Any:
    if config["kind"] == "state":
        return StateCache(*get_shapes(config, 1), DTYPES[config["dtype"]])
    options = get_options(config)
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], *options, twin=not config["variant"])
    return KVCache(*options)


def open_batched(config: Mapping[str, Any]) -> Any:
    """Returns a batch of config["rows"] empty rows, or one of config["caches"], which are
    used up; with neither a single cache."""
    if config["kind"] == "batch-list":
        return open_list(config, open_batched, BATCHED)
    batch, kind = BATCHED[config["kind"]]
    if config["caches"] is not None:
        return batch.stack(config["caches"])
    if config["rows"] is None:
        return make_layer({**config, "kind": kind})
    if kind != "state":
        return BatchedCache(config["rows"], config["window"], *get_options(config))
    conv, delta = get_shapes(config, config["rows"])
    dtype = DTYPES[config["dtype"]]
    return BatchedState((mx.zeros(conv, dtype), mx.zeros(delta, mx.float32)))


BATCHED = {
    "batch-kv": (BatchedCache, "kv"),
    "batch-rotating": (BatchedCache, "rotating"),
    "batch-state": (BatchedState, "state"),
}
"""The batch of each kind, and the kind of its single caches."""


def get_options(config: Mapping[str, Any]) -> tuple[int, float, mx.Dtype]:
    """Returns step, fill and mask of a layer cache or batch."""
    additive = config["mask_form"] == "additive"
    mask = DTYPES[config["dtype"]] if additive else mx.bool_
    return config["step"], math.nan if config["poison"] else 0.0, mask


def get_shapes(config: Mapping[str, Any], rows: int) -> tuple[Sequence[int], ...]:
    """Returns the shapes of conv and delta."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (rows, config["conv_width"] - 1, heads * key_dim)
    return conv, (rows, heads, key_dim, config["value_dim"])


def make_unified(config: Mapping[str, Any]) -> Any:
    if config["kind"] == "wrapper":
        return unified.make_wrapper(config, make_unified)
    if config["kind"] == "encoder":
        return EncoderCache(config["sequences"], config["batch"])
    options = {
        "rope": config["rope_bases"] if config["shift"] else None,
        "dtype": DTYPES[config["dtype"]],
        "mask": DTYPES[config["mask_dtype"]],
        "fill": math.nan if config["poison"] else 0.0,
        "permuted": config["permuted_values"],
    }
    sizes, layers = unified.get_sizes(config), config["layers"]
    if config["kind"] != "recurrent":
        return CausalCache(sizes, layers, **options)
    states = unified.get_states(config)
    return RecurrentCache(sizes, *states, layers, **options)


PLANTED = {"mlx-cpu": "mlx", "mlx-gpu": "mlx_gpu"}
"""The module of `impl.faults` with the planted mistakes of a device."""


def declare(name: str, device: mx.Device) -> Backend:
    arrays = MLXArrays(device)
    return Backend(
        name=name,
        device=name.removeprefix("mlx-"),
        contracts={
            "layer": LAYER,
            "batched": BATCHES,
            "unified": UNIFIED,
            "prefix": PREFIX,
            "paged": PAGED,
        },
        arrays=arrays,
        open=lambda config: open_cache(config, device),
        dtypes=("float32", "float16", "bfloat16"),
        lifetime="forever",
        causal="lower-right",
        poison=True,
        overwrite=arrays.overwrite,
        errors={**unified.ERRORS, **prefix.ERRORS},
        faults=f"lockstep.impl.faults.{PLANTED[name]}:list_faults",
        versions={"mlx": version("mlx")},
    )


def cpu() -> Backend:
    return declare("mlx-cpu", mx.Device(mx.cpu))


def gpu() -> Backend:
    """Returns the backend on Metal or CUDA, whichever this MLX was built for.

    Float32 attention is computed in float32. By default MLX rounds the factors to a
    mantissa of ten bits there (TF32), which hides errors of a cache in the last digits.

    Raises:
        Unavailable: MLX finds no GPU.
    """
    os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read at the first matrix product
    if not mx.is_available(mx.Device(mx.gpu)):
        raise Unavailable("MLX finds no GPU here, neither with Metal nor with CUDA")
    return declare("mlx-gpu", mx.Device(mx.gpu))
