"""The faults on torch: `impl.faults.torch:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable

from harness.backend import Backend, Planted
from impl.faults import FAULTS, plant
from impl.faults.fault import declare, describe
from impl.torch.backend import cpu
from impl.torch.masks import make_band


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "torch")


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = FAULTS.get(name.replace("_", "-"))
    if fault is None:
        raise AttributeError(f"there is no fault {name}; known: {', '.join(FAULTS)}")
    backend = cpu()
    return lambda: declare(
        fault, backend, lambda config: plant(fault, backend.open(config), make_band)
    )


def __dir__() -> list[str]:
    return ["list_faults", *(name.replace("-", "_") for name in FAULTS)]
