"""The sliding window on torch: a ring, with a second copy of its columns if
updates wrap."""

from __future__ import annotations

import torch

from lockstep.impl.shared.ring import Ring
from lockstep.impl.shared.rotating import RotatingCacheBase, check_window
from lockstep.impl.torch.masks import BOOLEAN
from lockstep.impl.torch.memory import TokenMemory


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, including itself. `update`, `view` and `state`
    return views of the ring if possible, which are valid until the next update, trim,
    restore or free of this cache.

    Args:
        window: number of tokens.
        step, fill, mask: see `impl.torch.kv`.
        twin: False saves memory, up to half. Then an update of several tokens that wraps
            around the ring copies the window.
    """

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float | None = None,
        mask: torch.Tensor = BOOLEAN,
        twin: bool = True,
    ) -> None:
        ring = Ring(check_window(window), step, twin)
        super().__init__(TokenMemory(ring, fill), window, mask)
        self.options = step, fill, mask, twin

    def make_empty(self) -> RotatingCache:
        return RotatingCache(self.window, *self.options)
