"""Declares the backends of our torch caches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lockstep.harness.backends import Backend, Unavailable
from lockstep.impl.prefix import config as prefix
from lockstep.impl.shared import unified
from lockstep.impl.shared.backend import Framework, declare_kinds
from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.paged_memory import HostSpans
from lockstep.impl.torch.arrays import DTYPES, TorchArrays, overwrite
from lockstep.impl.torch.batched import BatchedCache
from lockstep.impl.torch.batched_state import BatchedState
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.encoder import EncoderCache
from lockstep.impl.torch.kernels import Kernels, choose
from lockstep.impl.torch.kernels.host import HostKernels
from lockstep.impl.torch.kernels.plain import PlainKernels
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.paged import TorchBlocks
from lockstep.impl.torch.pooled import PooledCache
from lockstep.impl.torch.recurrent import RecurrentCache
from lockstep.impl.torch.rotating import RotatingCache
from lockstep.impl.torch.state import StateCache

SCOPES = (*[0] * 9, 1, 2, 3)
"""See `TorchArrays.list_scopes`."""

WITHOUT_GRADIENTS = (*[0] * 6, 1, 3)
"""The scopes for Triton kernels, which refuse gradients."""

AT_ONCE = (False, False, False, True)
VARIANTS = (*[0] * 7, 1)
"""Variants, with repetitions as weights; 1: plain kernels, as on most devices."""

PLANTED = {"cpu": "torch", "cuda": "torch_cuda"}
"""Device → the module of `impl.faults` with its planted mistakes."""


def open_cache(
    config: Mapping[str, Any], device: torch.device, kernels: Kernels | None = None
) -> Any:
    """Returns the cache for a config of any contract.

    Args:
        config: see the contracts.
        device: the device of the arrays.
        kernels: None to choose the kernels by the device.
    """
    return get_framework(device, kernels).open(config)


def get_framework(device: torch.device, kernels: Kernels | None) -> Framework:
    """Returns our caches on a device; for the arguments, see `open_cache`."""

    def as_like(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device=device)

    def make_blocks(*sizes: Any) -> TorchBlocks:
        *rooms, dtype, fill = sizes
        return TorchBlocks(*rooms, as_like(dtype), fill, kernels)

    def make_host_blocks(*sizes: Any) -> TorchBlocks:
        *rooms, dtype, fill = sizes
        like = torch.empty(0, dtype=dtype)
        return TorchBlocks(*rooms, like, fill, PlainKernels())

    def get_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
        like = as_like(DTYPES[config["dtype"]])
        return {"like": like, "kernels": choose_kernels(config, kernels)}

    return Framework(
        dtypes=DTYPES,
        boolean=torch.bool,
        unfilled=None,
        as_like=as_like,
        zeros=partial(torch.zeros, device=device),
        kv=KVCache,
        rotating=RotatingCache,
        pooled=PooledCache,
        state=partial(StateCache, device=device),
        batch=BatchedCache,
        batch_state=BatchedState,
        encoder=EncoderCache,
        causal=CausalCache,
        recurrent=RecurrentCache,
        make_blocks=make_blocks,
        make_host_blocks=make_host_blocks,
        get_options=get_options,
    )


def choose_kernels(config: Mapping[str, Any], kernels: Kernels | None) -> Kernels | None:
    """Returns the kernels of a unified cache for a config."""
    if config["variant"]:
        return PlainKernels()
    if config["small"] is not None and isinstance(kernels, HostKernels):
        return HostKernels(max(1, config["small"]))
    return kernels


def declare(name: str, device: str, kernels: Kernels | None = None) -> Backend:
    arrays = TorchArrays(device)
    kernels = kernels or choose(arrays.device)
    is_plain = isinstance(kernels, PlainKernels)
    versions = {"torch": torch.__version__, "kernels": type(kernels).__name__}
    return Backend(
        name=name,
        device=device,
        contracts=declare_kinds(
            {"scope": SCOPES if is_plain else WITHOUT_GRADIENTS},
            {"variant": VARIANTS, "at_once": AT_ONCE},
        ),
        arrays=arrays,
        open=lambda config: open_cache(config, arrays.device, kernels),
        dtypes=("float32", "float16", "bfloat16"),
        lifetime="until-write",
        causal="upper-left",
        poison=True,
        scope=torch.inference_mode,
        scopes=arrays.list_scopes(),
        overwrite=overwrite,
        errors={**unified.ERRORS, **prefix.ERRORS},
        faults=f"lockstep.impl.faults.{PLANTED[arrays.device.type]}:list_faults",
        versions=versions,
        is_fatal=is_fatal,
    )


def cpu() -> Backend:
    return declare("torch-cpu", "cpu")


LOST = re.compile(r"CUDA (driver )?error|Triton Error \[CUDA\]")


def is_fatal(error: Exception) -> bool:
    """Returns whether CUDA no longer works in this process.

    After an illegal access, the next launch fails in any library. Triton and older
    versions of torch then raise a plain RuntimeError.
    """
    lost = getattr(torch, "AcceleratorError", ())
    return isinstance(error, lost) or LOST.search(str(error)) is not None


def cuda() -> Backend:
    """Returns the backend on CUDA.

    Raises:
        Unavailable: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device here")
    backend = declare("torch-cuda", "cuda")
    warm_up(backend.arrays)
    scopes = [partial(wait_within, scope) for scope in (backend.scope, *backend.scopes)]
    return replace(backend, scope=scopes[0], scopes=tuple(scopes[1:]))


@contextmanager
def wait_within(scope: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Waits for the device at the end of a scope.

    Without this, an error in the last kernels of a program would appear in the next
    program.
    """
    with scope():
        yield
        torch.cuda.synchronize()


def warm_up(arrays: Any) -> None:
    """Runs the operations whose first call is slow, before a program needs them.

    It creates the CUDA context, and runs each kernel of each family of caches, and
    attention. Without this, the first step of a program would seem to hang.
    """
    like = torch.empty(0, device=arrays.device)
    token = like.new_zeros((1, 1, 1, 16))
    cache = CausalCache(Sizes(1, 8, 2), like=like, mask=like)
    for position in range(2):
        cache.forward([position], [0])
        cache.put(0, token, token)
        arrays.attend(token, *cache.get(0))
    cache.remove(0, 0, 1)  # turns the key behind it
    batch, pair = BatchedCache(2, mask=like), token.expand(2, -1, 2, -1)
    batch.pad_left([1, 0])
    mask = batch.make_mask(2)
    arrays.attend(pair, *batch.update(pair, pair), mask)
    blocks = TorchBlocks(1, 1, 1, 1, (16, 16), like)
    blocks.write(0, [0], token, token)
    blocks.read(0, [0])
    ends = np.ones(1, np.int32)
    spans = HostSpans(ends[None] - 1, ends - 1, ends, block=1)
    blocks.attend_each(0, token, blocks.prepare(spans))
    torch.cuda.synchronize()


def triton() -> Backend:
    """Returns the backend that runs the CUDA code on the CPU, in Triton's interpreter.

    It is slow and intended for tests.

    Raises:
        Unavailable: TRITON_INTERPRET was not set before the kernels were imported.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable(
            "set TRITON_INTERPRET=1; without it, Triton kernels do not run on the CPU"
        )
    from lockstep.impl.torch.kernels.fused import TritonKernels

    return declare("torch-triton", "cpu", TritonKernels())
