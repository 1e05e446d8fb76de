"""A backend whose passes go through `FixedStep`: `stepping:backend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from lockstep.harness.backends.backend import Backend
from lockstep.impl.shared.causal import round_up
from lockstep.impl.torch.backend import cuda, triton
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.graphs import FixedStep

KINDS = ("causal", "swa", "swa-memory", "chunked")


class SteppingCache:
    """A causal cache whose passes of any size go through one step.

    The step puts nothing by itself: layers come one by one, and are put as they come.
    """

    def __init__(self, cache: CausalCache) -> None:
        self.cache = cache
        self.step = FixedStep(cache, cache.sizes.batch, cache.cells.count, changes=4)
        self.step.capture(lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def forward(self, *rows: Any) -> None:
        self.cache.forward(*rows)
        if self.cache.get_pass().cells is not None:
            self.step.run()

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        current = self.cache.check_put(layer, keys.shape, values.shape)
        if current.cells is not None:
            missing = (0, 0, 0, self.step.rows - len(current.batch))
            tokens = (pad(each, missing, value=torch.nan) for each in (keys, values))
            self.step.put(layer, *tokens)

    def get(self, layer: int) -> Any:
        current = self.cache.check_get(layer)
        if current.cells is None:
            return self.cache.get(layer)
        *_, mask = self.step.get(layer)
        rows = round_up(len(current.batch), self.cache.sizes.mask_padding)
        seen = mask[:rows, current.begin : current.end]
        return *self.cache.view(layer, current.begin, current.end), seen


def backend() -> Backend:
    below = cuda() if torch.cuda.is_available() else triton()

    def open_cache(config: Mapping[str, Any]) -> SteppingCache:
        return SteppingCache(below.open(config))

    kinds = {kind: below.contracts["unified"][kind] for kind in KINDS}
    return replace(
        below, name="torch-steps", contracts={"unified": kinds}, open=open_cache
    )
