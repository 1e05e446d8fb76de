"""The faults on MLX, for example `lockstep.impl.faults.mlx:clone_shares`."""

from collections.abc import Callable
from typing import Any

from lockstep.impl.faults.fault import FaultedBackend
from lockstep.impl.mlx.backend import OnDevice, cpu
from lockstep.impl.mlx.memory import make_band


def change_cache(opened: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(opened, OnDevice):  # prefix caches, whose layers are wrapped
        return change(opened)
    opened.cache = change(opened.cache)
    return opened


FAULTED = FaultedBackend(__name__, "mlx-cpu", cpu, make_band, change_cache)
list_faults = FAULTED.list_faults
__getattr__, __dir__ = FAULTED.get_factory, FAULTED.list_names
