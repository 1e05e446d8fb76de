"""Declares the backends of our MLX caches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from lockstep.harness.backends import Backend, Unavailable
from lockstep.impl.mlx.arrays import DTYPES, MLXArrays
from lockstep.impl.mlx.batched import BatchedCache
from lockstep.impl.mlx.batched_state import BatchedState
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.encoder import EncoderCache
from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.paged import MlxBlocks
from lockstep.impl.mlx.pooled import PooledCache
from lockstep.impl.mlx.recurrent import RecurrentCache
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.mlx.state import StateCache
from lockstep.impl.prefix import config as prefix
from lockstep.impl.shared import unified
from lockstep.impl.shared.backend import Framework, declare_kinds
from lockstep.impl.shared.operations import BATCH_CONFIG


class OnDevice:
    """A cache that computes on one device, even if another device is the default.

    It starts the evaluation of K and V of each result together and immediately, like a
    loop that generates tokens.
    """

    def __init__(self, cache: Any, device: mx.Device) -> None:
        self.cache, self.device = cache, device

    def clone(self) -> OnDevice:
        with mx.stream(self.device):
            return OnDevice(self.cache.clone(), self.device)

    def extract(self, row: int) -> OnDevice:
        with mx.stream(self.device):
            return OnDevice(self.cache.extract(row), self.device)

    def extend(self, joined: OnDevice) -> None:
        with mx.stream(self.device):
            self.cache.extend(joined.cache)

    @cached_property
    def parts(self) -> tuple[OnDevice, ...]:
        return tuple(OnDevice(cache, self.device) for cache in self.cache.parts)

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
    """Calls `method` on the device, and starts the evaluation of the returned arrays."""
    with mx.stream(device):
        result = method(*arguments)
        mx.async_eval(result)  # type: ignore[no-untyped-call]
    return result


def open_cache(config: Mapping[str, Any], device: mx.Device) -> Any:
    """Returns the cache for a config of any contract."""
    is_below = config["kind"] in prefix.OPERATIONS  # its caches are on the device already
    if is_below or config.get("data") == "tags":
        return FRAMEWORK.open(config)
    if config["kind"] in BATCH_CONFIG and config["caches"] is not None:
        config = {**config, "caches": [single.cache for single in config["caches"]]}
    with mx.stream(device):
        return OnDevice(FRAMEWORK.open(config), device)


FRAMEWORK = Framework(
    dtypes=DTYPES,
    boolean=mx.bool_,
    unfilled=0.0,
    as_like=lambda dtype: dtype,
    zeros=mx.zeros,
    kv=KVCache,
    rotating=RotatingCache,
    pooled=PooledCache,
    state=StateCache,
    batch=BatchedCache,
    batch_state=BatchedState,
    encoder=EncoderCache,
    causal=CausalCache,
    recurrent=RecurrentCache,
    make_blocks=MlxBlocks,
    make_host_blocks=MlxBlocks,
    get_options=lambda config: {"dtype": DTYPES[config["dtype"]]},
)

PLANTED = {"mlx-cpu": "mlx", "mlx-gpu": "mlx_gpu"}
"""Backend → the module of `impl.faults` with its planted mistakes."""


def declare(name: str, device: mx.Device) -> Backend:
    arrays = MLXArrays(device)
    return Backend(
        name=name,
        device=name.removeprefix("mlx-"),
        contracts=declare_kinds(),
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

    The backend computes float32 attention in float32. By default MLX rounds the factors
    on a GPU to a mantissa of ten bits (TF32), which hides errors in the last digits.

    Raises:
        Unavailable: MLX finds no GPU.
    """
    os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read at the first matrix product
    if not mx.is_available(mx.Device(mx.gpu)):
        raise Unavailable("MLX finds no GPU here, neither with Metal nor with CUDA")
    return declare("mlx-gpu", mx.Device(mx.gpu))
