"""The backends of our torch caches."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lockstep.harness.backends import Backend, Kind, Unavailable
from lockstep.impl.prefix import config as prefix
from lockstep.impl.shared import unified
from lockstep.impl.shared.batched_list import open_list
from lockstep.impl.shared.causal import Sizes
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
from lockstep.impl.torch.recurrent import RecurrentCache
from lockstep.impl.torch.rotating import RotatingCache
from lockstep.impl.torch.state import StateCache

SCOPES = (*[0] * 9, 1, 2, 3)
"""See `TorchArrays.list_scopes`."""

WITHOUT_GRADIENTS = (*[0] * 6, 1, 3)
"""The scopes for Triton kernels, which refuse gradients."""

AT_ONCE = (False, False, False, True)
VARIANTS = (*[0] * 7, 1)
"""1: plain kernels, as on devices that have no others."""

PLANTED = {"cpu": "torch", "cuda": "torch_cuda"}
"""The module of `impl.faults` with the planted mistakes of a device."""


def open_cache(
    config: Mapping[str, Any], device: torch.device, kernels: Kernels | None = None
) -> Any:
    """Returns the cache for a config of any contract.

    Args:
        config: see the contracts.
        device: where the arrays are.
        kernels: None to choose by the device.
    """
    if config["kind"] in prefix.OPERATIONS:
        return prefix.open_cache(config)
    if config["kind"] in unified.OPERATIONS:
        return open_unified(config, device, kernels)
    if config["kind"] in BATCHED_OPERATIONS:
        return open_batched(config, device)
    if config["kind"].startswith("paged"):
        if config["data"] == "tags":
            return open_paged(config, None)
        host = make_blocks(config, "host", torch.device("cpu"), PlainKernels())
        blocks = make_blocks(config, "blocks", device, kernels)
        return open_paged(config, blocks, host if config["host"] else None)
    return open_layer(config, device)


def make_blocks(
    config: Mapping[str, Any], field: str, device: torch.device, kernels: Kernels | None
) -> TorchBlocks:
    """Makes memory of a paged cache; a field of the config says how many blocks."""
    like = torch.empty(0, dtype=DTYPES[config["dtype"]], device=device)
    dims = config["key_dim"], config["value_dim"]
    fill = math.nan if config["poison"] else 0.0
    return TorchBlocks(
        *get_room(config, field), config["heads"], dims, like, fill, kernels
    )


def open_layer(config: Mapping[str, Any], device: torch.device) -> Any:
    if config["kind"] == "state":
        return StateCache(*get_shapes(config, 1), DTYPES[config["dtype"]], device)
    options = get_options(config, device)
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], *options, twin=not config["variant"])
    return KVCache(*options)


def open_batched(config: Mapping[str, Any], device: torch.device) -> Any:
    """Returns a batch of config["rows"] empty rows, or one of config["caches"], which are
    used up; with neither a single cache."""
    if config["kind"] == "batch-list":
        return open_list(config, lambda part: open_batched(part, device), BATCHED)
    batch, kind = BATCHED[config["kind"]]
    if config["caches"] is not None:
        return batch.stack(config["caches"])
    if config["rows"] is None:
        return open_layer({**config, "kind": kind}, device)
    if kind != "state":
        options = get_options(config, device)
        return BatchedCache(config["rows"], config["window"], *options)
    conv, delta = get_shapes(config, config["rows"])
    dtype = DTYPES[config["dtype"]]
    return BatchedState(
        (
            torch.zeros(conv, dtype=dtype, device=device),
            torch.zeros(delta, dtype=torch.float32, device=device),
        )
    )


BATCHED = {
    "batch-kv": (BatchedCache, "kv"),
    "batch-rotating": (BatchedCache, "rotating"),
    "batch-state": (BatchedState, "state"),
}
"""The batch of each kind, and the kind of its single caches."""


def get_options(
    config: Mapping[str, Any], device: torch.device
) -> tuple[int, float | None, torch.Tensor]:
    """Returns step, fill and mask of a layer cache or batch."""
    additive = config["mask_form"] == "additive"
    dtype = DTYPES[config["dtype"]] if additive else torch.bool
    fill = math.nan if config["poison"] else None
    return config["step"], fill, torch.empty(0, dtype=dtype, device=device)


def get_shapes(config: Mapping[str, Any], rows: int) -> Sequence[Sequence[int]]:
    """Returns the shapes of conv and delta."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (rows, config["conv_width"] - 1, heads * key_dim)
    return conv, (rows, heads, key_dim, config["value_dim"])


def open_unified(
    config: Mapping[str, Any], device: torch.device, kernels: Kernels | None
) -> Any:
    if config["kind"] == "wrapper":
        return unified.make_wrapper(
            config, lambda part: open_unified(part, device, kernels)
        )
    if config["kind"] == "encoder":
        return EncoderCache(config["sequences"], config["batch"])
    options = {
        "rope": config["rope_bases"] if config["shift"] else None,
        "like": torch.empty(0, dtype=DTYPES[config["dtype"]], device=device),
        "mask": torch.empty(0, dtype=DTYPES[config["mask_dtype"]], device=device),
        "fill": math.nan if config["poison"] else 0.0,
        "permuted": config["permuted_values"],
        "kernels": kernels,
    }
    if config["variant"]:
        options["kernels"] = PlainKernels()
    elif config["small"] is not None and isinstance(kernels, HostKernels):
        options["kernels"] = HostKernels(max(1, config["small"]))
    sizes, layers = unified.get_sizes(config), config["layers"]
    if config["kind"] != "recurrent":
        return CausalCache(sizes, layers, **options)
    states = unified.get_states(config)
    return RecurrentCache(sizes, *states, layers, **options)


def declare_kinds(scopes: Sequence[int]) -> Mapping[str, Mapping[str, Kind]]:
    """Returns the promise for each kind of each contract."""
    more = {"scope": tuple(scopes)}
    pools = {**unified.CONFIG, "variant": VARIANTS, "at_once": AT_ONCE, **more}
    return {
        "layer": {
            kind: Kind(
                operations, {**CONFIG[kind], **more}, refuses=True, held=HELD[kind]
            )
            for kind, operations in OPERATIONS.items()
        },
        "batched": {
            kind: Kind(
                operations,
                {**BATCH_CONFIG[kind], **more},
                refuses=True,
                held=BATCH_HELD[kind],
            )
            for kind, operations in BATCHED_OPERATIONS.items()
        },
        "unified": {
            kind: Kind(
                operations,
                {**pools, **unified.OF_KIND.get(kind, {})},
                refuses=True,
                held=1,
            )
            for kind, operations in unified.OPERATIONS.items()
        },
        "prefix": {
            kind: Kind(
                operations,
                {**prefix.CONFIG[kind], **more},
                builds_on=True,
                refuses=True,
                held=prefix.HELD[kind],
            )
            for kind, operations in prefix.OPERATIONS.items()
        },
        "paged": {
            f"paged-{kind}": Kind(
                PAGED_OPERATIONS,
                {**PAGED_CONFIG, **more},
                refuses=True,
                tells=PAGED_TELLS,
            )
            for kind in PAGED_KINDS
        },
    }


def declare(name: str, device: str, kernels: Kernels | None = None) -> Backend:
    arrays = TorchArrays(device)
    kernels = kernels or choose(arrays.device)
    is_plain = isinstance(kernels, PlainKernels)
    versions = {"torch": torch.__version__, "kernels": type(kernels).__name__}
    return Backend(
        name=name,
        device=device,
        contracts=declare_kinds(SCOPES if is_plain else WITHOUT_GRADIENTS),
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

    After an illegal access the next launch fails, whoever launches: Triton, and older
    versions of torch, raise a plain RuntimeError.
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
    scopes = [partial(wait_within, one) for one in (backend.scope, *backend.scopes)]
    return replace(backend, scope=scopes[0], scopes=tuple(scopes[1:]))


@contextmanager
def wait_within(scope: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Ends a scope when the device is done: an error in the last kernels of a program
    must not show in the next one."""
    with scope():
        yield
        torch.cuda.synchronize()


def warm_up(arrays: Any) -> None:
    """Does what is slow the first time: CUDA context, each kernel of each family of
    caches, attention.

    In a program, the first step would look as if it hangs.
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
    """Returns the CUDA code on the CPU, in Triton's interpreter: slow, for tests.

    Raises:
        Unavailable: TRITON_INTERPRET was not set before the kernels were imported.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable("set TRITON_INTERPRET=1: kernels run on the CPU only so")
    from lockstep.impl.torch.kernels.fused import TritonKernels

    return declare("torch-triton", "cpu", TritonKernels())
