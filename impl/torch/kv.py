"""The full cache on torch: one buffer that is written in place and returned as views."""

from __future__ import annotations

import torch

from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.linear import Linear
from lockstep.impl.torch.masks import BOOLEAN
from lockstep.impl.torch.memory import TokenMemory


class KVCache(KVCacheBase):
    """Full attention over one sequence, batch 1.

    `update`, `view` and `state` return views of the buffer, which are valid until the
    next update, trim, restore or free of this cache.

    Args:
        step: see `impl.shared.linear.compute_capacity`.
        fill: the initial content of the memory; None for uninitialized memory.
        mask: a tensor with the dtype and device of masks. A bool mask is True where a row
            sees a column; a floating-point mask is 0 there, and -inf elsewhere.
    """

    def __init__(
        self, step: int = 256, fill: float | None = None, mask: torch.Tensor = BOOLEAN
    ) -> None:
        super().__init__(TokenMemory(Linear(step), fill), None, mask)
        self.options = step, fill, mask

    def make_empty(self) -> KVCache:
        return KVCache(*self.options)
