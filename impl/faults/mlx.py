"""The faults on MLX: `impl.faults.mlx:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from harness.backend import Backend
from impl.faults import FAULTS, plant
from impl.faults.fault import declare
from impl.mlx.backend import OnDevice, cpu, make_cache
from impl.mlx.masks import make_band


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = FAULTS.get(name.replace("_", "-"))
    if fault is None:
        raise AttributeError(f"there is no fault {name}; known: {', '.join(FAULTS)}")
    device = mx.Device(mx.cpu)
    return lambda: declare(
        fault,
        cpu(),
        lambda config: OnDevice(plant(fault, make_cache(config), make_band), device),
    )


def __dir__() -> list[str]:
    return [name.replace("-", "_") for name in FAULTS]
