"""Shared by the measurements of prefix caches: small layers, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS

DIM = 2
CONV, DELTA = (1, 3, 4), (1, 1, 4, 4)
FORM = {"heads": 1, "key_dim": DIM, "value_dim": DIM}
STATE = {"heads": 1, "key_dim": 4, "value_dim": 4, "conv_width": 4}


def open_layer(backend: Backend, kind: str, **fields: Any) -> Any:
    rules, declared = CONTRACTS["layer"], backend.contracts["layer"][kind]
    config = rules.get_plain_config(kind, declared, backend.dtypes)
    return backend.open({**config, "step": 256, "poison": False, **fields})


def wait(backend: Backend, arrays: Any) -> None:
    """Until the numbers are there."""
    for array in arrays or ():
        backend.arrays.to_numpy(array)


def get_percentile(times: Sequence[float]) -> float:
    """The 99th."""
    return float(np.percentile(times, 99))
