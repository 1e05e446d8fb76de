"""The faults on MLX: `impl.faults.mlx:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from lockstep.harness.backends import Backend, Planted
from lockstep.impl.faults import FAULTS, Fault, plant
from lockstep.impl.faults.fault import declare, describe, find
from lockstep.impl.mlx.backend import OnDevice, cpu, make_cache, open_cache
from lockstep.impl.mlx.masks import make_band


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "mlx")


def plant_in(backend: Backend, device: mx.Device, fault: Fault) -> Backend:
    """One of our backends on MLX, with the mistake."""

    def open_planted(config: Mapping[str, Any]) -> Any:
        if fault.contract == "prefix":  # the caches below it are on the device already
            return plant(fault, open_cache(config, device), make_band)
        return OnDevice(plant(fault, make_cache(config), make_band), device)

    return declare(fault, backend, open_planted)


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = find(FAULTS, name)
    return lambda: plant_in(cpu(), mx.Device(mx.cpu), fault)


def __dir__() -> list[str]:
    return ["list_faults", *(name.replace("-", "_") for name in FAULTS)]
