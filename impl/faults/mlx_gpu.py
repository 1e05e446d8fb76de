"""The faults on MLX on a GPU: `impl.faults.mlx_gpu:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from lockstep.harness.backends import Backend, Planted
from lockstep.impl.faults import FAULTS
from lockstep.impl.faults.fault import describe, find
from lockstep.impl.faults.mlx import plant_in
from lockstep.impl.mlx.backend import gpu


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "mlx_gpu")


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = find(FAULTS, name)
    return lambda: plant_in(gpu(), mx.Device(mx.gpu), fault)
