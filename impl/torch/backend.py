"""How our torch caches declare themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from harness.backend import Backend, Kind
from impl.torch.arrays import DTYPES, TorchArrays
from impl.torch.kv import KVCache
from impl.torch.rotating import RotatingCache
from impl.torch.state import StateCache

SNAPSHOTS = {"snapshot", "restore", "split", "merge", "close", "prepare", "take"}
ALWAYS = {"update", "state", "view", "trim", "clone", "free", *SNAPSHOTS}
MASKS = {"mask_padding": (1, 4), "mask_form": ("any", "additive")}

LAYER = {
    "kv": Kind(frozenset({*ALWAYS, "size"}), MASKS),
    "rotating": Kind(frozenset({*ALWAYS, "size"}), MASKS),
    "state": Kind(frozenset(ALWAYS)),
}


class WithMasks:
    """A cache whose `make_mask` knows dtype and device, as a model would tell them."""

    def __init__(self, cache: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.cache, self.dtype, self.device = cache, dtype, device

    def make_mask(self, length: int, rows: int) -> torch.Tensor | None:
        mask: torch.Tensor | None = self.cache.make_mask(
            length, rows, self.dtype, self.device
        )
        return mask

    def clone(self) -> WithMasks:
        return WithMasks(self.cache.clone(), self.dtype, self.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def open_cache(config: Mapping[str, Any], device: torch.device) -> Any:
    """The cache for a config of the layer contract."""
    dtype = DTYPES[config["dtype"]]
    fill = math.nan if config["poison"] else None
    additive = config["mask_form"] == "additive"
    heads, key_dim = config["heads"], config["key_dim"]
    if config["kind"] == "state":
        conv = (1, config["conv_width"] - 1, heads * key_dim)
        delta = (1, heads, key_dim, config["value_dim"])
        return StateCache(conv, delta, dtype, device)
    if config["kind"] == "rotating":
        ring = RotatingCache(config["window"], config["step"], fill, additive)
        return WithMasks(ring, dtype, device)
    return WithMasks(KVCache(config["step"], fill, additive), dtype, device)


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
        versions={"torch": torch.__version__},
    )


def cpu() -> Backend:
    return declare("torch-cpu", "cpu")


def cuda() -> Backend:
    """Raises RuntimeError if torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    return declare("torch-cuda", "cuda")
