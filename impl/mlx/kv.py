"""The full cache on MLX: one buffer that is written through slices. Returned arrays keep
their content."""

from __future__ import annotations

import mlx.core as mx

from lockstep.impl.mlx.memory import TokenMemory
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.linear import Linear


class KVCache(KVCacheBase):
    """Full attention over one sequence, batch 1.

    The arrays that `update`, `view` and `state` return keep their content. Drop these
    arrays before the next update is evaluated; otherwise, that update copies the whole
    buffer.

    Args:
        step: see `impl.shared.linear.compute_capacity`.
        fill: the initial content of the memory; any value costs the same.
        mask: the dtype of masks. A bool_ mask is True where a row sees a column, or
            "causal" if that is equivalent; a floating-point mask is 0 there, and -inf
            elsewhere.
    """

    def __init__(
        self, step: int = 256, fill: float = 0.0, mask: mx.Dtype = mx.bool_
    ) -> None:
        super().__init__(TokenMemory(Linear(step), fill), None, mask)
        self.options = step, fill, mask

    def make_empty(self) -> KVCache:
        return KVCache(*self.options)
