"""How our torch caches declare themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from harness.backend import Backend, Kind
from impl.shared.operations import CONFIG, OPERATIONS
from impl.torch.arrays import DTYPES, TorchArrays
from impl.torch.kv import KVCache
from impl.torch.rotating import RotatingCache
from impl.torch.state import StateCache

LAYER = {kind: Kind(operations, CONFIG[kind]) for kind, operations in OPERATIONS.items()}


def open_cache(config: Mapping[str, Any], device: torch.device) -> Any:
    """The cache for a config of the layer contract."""
    dtype = DTYPES[config["dtype"]]
    fill = math.nan if config["poison"] else None
    additive = config["mask_form"] == "additive"
    mask = torch.empty(0, dtype=dtype if additive else torch.bool, device=device)
    heads, key_dim = config["heads"], config["key_dim"]
    if config["kind"] == "state":
        conv = (1, config["conv_width"] - 1, heads * key_dim)
        delta = (1, heads, key_dim, config["value_dim"])
        return StateCache(conv, delta, dtype, device)
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], config["step"], fill, mask)
    return KVCache(config["step"], fill, mask)


def declare(name: str, device: str) -> Backend:
    arrays = TorchArrays(device)
    return Backend(
        name=name,
        device=device,
        contracts={"layer": LAYER},
        arrays=arrays,
        open=lambda config: open_cache(config, arrays.device),
        dtypes=("float32", "float16", "bfloat16"),
        lifetime="until-write",
        causal="upper-left",
        poison=True,
        overwrite=lambda array: array.fill_(math.nan),
        versions={"torch": torch.__version__},
    )


def cpu() -> Backend:
    return declare("torch-cpu", "cpu")


def cuda() -> Backend:
    """Raises RuntimeError if torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    return declare("torch-cuda", "cuda")
