"""The sliding window on MLX: a ring, with a second copy of its columns if
updates wrap."""

from __future__ import annotations

import mlx.core as mx

from lockstep.impl.mlx.memory import TokenMemory
from lockstep.impl.shared.ring import Ring
from lockstep.impl.shared.rotating import RotatingCacheBase, check_window


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, including itself. The arrays that `update`,
    `view` and `state` return keep their content; see `impl.mlx.kv`.

    Args:
        window: number of tokens.
        step, fill, mask: see `impl.mlx.kv`.
        twin: False saves memory, up to half. Then an update of several tokens that wraps
            around the ring copies the window.
    """

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float = 0.0,
        mask: mx.Dtype = mx.bool_,
        twin: bool = True,
    ) -> None:
        ring = Ring(check_window(window), step, twin)
        super().__init__(TokenMemory(ring, fill), window, mask)
        self.options = step, fill, mask, twin

    def make_empty(self) -> RotatingCache:
        return RotatingCache(self.window, *self.options)
