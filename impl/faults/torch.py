"""The faults on torch: `impl.faults.torch:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.harness.backends import Backend, Planted
from lockstep.impl.faults import FAULTS, Fault, plant
from lockstep.impl.faults.fault import declare, describe, find
from lockstep.impl.torch.backend import cpu
from lockstep.impl.torch.masks import make_band


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "torch")


def plant_in(backend: Backend, fault: Fault) -> Backend:
    """One of our backends on torch, with the mistake."""
    return declare(
        fault, backend, lambda config: plant(fault, backend.open(config), make_band)
    )


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = find(FAULTS, name)
    return lambda: plant_in(cpu(), fault)


def __dir__() -> list[str]:
    return ["list_faults", *(name.replace("-", "_") for name in FAULTS)]
