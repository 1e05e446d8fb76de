"""Backends whose passes go through `FixedStep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from lockstep.harness.backends.backend import Backend
from lockstep.impl.shared.causal import round_up
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
        if self.cache.check_put(layer, keys.shape, values.shape).cells is not None:
            self.step.put(layer, *map(self.fill, (keys, values)))

    def put_all(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.cache.check_layers(keys.shape, values.shape)
        for layer in range(self.cache.layers):
            current = self.cache.check_put(layer, keys.shape[1:], values.shape[1:])
        if current.cells is not None:
            self.step.put_all(*map(self.fill, (keys, values)))

    def fill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adds the rows that the pass does not have."""
        missing = self.step.rows - len(self.cache.get_pass().batch)
        return pad(tokens, (0, 0, 0, missing), value=torch.nan)

    def get(self, layer: int) -> Any:
        current = self.cache.check_get(layer)
        if current.cells is None:
            return self.cache.get(layer)
        *_, mask = self.step.get(layer)
        rows = round_up(len(current.batch), self.cache.sizes.mask_padding)
        seen = mask[:rows, current.begin : current.end]
        return *self.cache.view(layer, current.begin, current.end), seen


def step_over(below: Backend) -> Backend:
    """The backend whose caches go through steps, without gradients."""

    def open_cache(config: Mapping[str, Any]) -> SteppingCache:
        return SteppingCache(below.open(config))

    kinds = {kind: below.contracts["unified"][kind] for kind in KINDS}
    contracts = {"unified": kinds}
    return replace(below, contracts=contracts, open=open_cache, scopes=())
