"""The faults on MLX: `impl.faults.mlx:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from harness.backend import Backend, Planted
from impl.faults import FAULTS, Fault, plant
from impl.faults.fault import declare, describe
from impl.mlx.backend import OnDevice, cpu, make_cache, open_cache
from impl.mlx.masks import make_band


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "mlx")


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = FAULTS.get(name.replace("_", "-"))
    if fault is None:
        raise AttributeError(f"there is no fault {name}; known: {', '.join(FAULTS)}")
    return lambda: declare(fault, cpu(), lambda config: open_planted(fault, config))


def open_planted(fault: Fault, config: Mapping[str, Any]) -> Any:
    device = mx.Device(mx.cpu)
    if fault.contract == "prefix":  # the caches below it are on the device already
        return plant(fault, open_cache(config, device), make_band)
    return OnDevice(plant(fault, make_cache(config), make_band), device)


def __dir__() -> list[str]:
    return ["list_faults", *(name.replace("-", "_") for name in FAULTS)]
