"""Common declarations of torch caches that have a fixed size and whose callers count the
positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.torch.arrays import TorchArrays

LEDGER = Path(__file__).parent / "ledger"

PLAIN: Mapping[str, tuple[Any, ...]] = {
    "mask_padding": (1,),
    "mask_form": ("any",),
    "keep": (0,),
    "chunk": (None,),
}
ROOM = {"step": (16, 8, 11, 1024)}
"""The config field "step" holds the largest number of tokens."""


def overflow(rule: str) -> Duty:
    """Makes a duty of callers: do not write more tokens than fit."""
    return Duty({"op": "update", "offset + length - step": [1, None]}, rule)


def _overwrite(array: Any) -> None:
    array.fill_(math.nan)


def declare_static(
    library: str,
    name: str,
    kinds: Mapping[str, Kind],
    opener: Callable[[Mapping[str, Any]], Any],
    share: int = 1,
    tolerance: float = 0.0,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
) -> Backend:
    """Declares a backend for layer caches of a library; `library` is its distribution."""
    return Backend(
        name=name,
        device="cpu",
        contracts={"layer": kinds},
        arrays=TorchArrays("cpu"),
        open=opener,
        dtypes=dtypes,
        overwrite=_overwrite,
        tolerance=tolerance,
        ledger=LEDGER,
        code=("lockstep",),
        versions={package: version(package) for package in (library, "torch")},
        share=share,
    )
