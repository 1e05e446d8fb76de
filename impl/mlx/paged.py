"""The memory of a paged cache on MLX."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from lockstep.impl.shared.paged_memory import BlockMemory

Pair = tuple[mx.array, mx.array]


class MlxBlocks(BlockMemory):
    """K and V in two arrays for each layer, [slots, heads, dim].

    Args:
        blocks, size, layers: see `BlockMemory`.
        heads, dims: heads, and the dimensions of K and V.
        dtype: of the arrays.
        fill: initial content.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        layers: int,
        heads: int,
        dims: Sequence[int],
        dtype: mx.Dtype,
        fill: float = 0.0,
    ) -> None:
        super().__init__(blocks, size, layers)
        self.buffers = [
            [mx.full((blocks * size, heads, dim), fill, dtype) for dim in dims]
            for _ in range(layers)
        ]

    def write(
        self, layer: int, slots: Sequence[int], keys: mx.array, values: mx.array
    ) -> None:
        index = mx.array(slots)
        for buffer, array in zip(self.buffers[layer], (keys, values), strict=True):
            buffer[index] = array[0].swapaxes(0, 1)

    def read(self, layer: int, slots: Sequence[int]) -> Pair:
        keys, values = self.buffers[layer]
        index = mx.array(slots)
        return self.gather(keys, index), self.gather(values, index)

    def gather(self, buffer: mx.array, index: mx.array) -> mx.array:
        return buffer[index].swapaxes(0, 1)[None]

    def copy(self, source: int, target: int) -> None:
        size = self.size
        for pair in self.buffers:
            for buffer in pair:
                moved = buffer[source * size : (source + 1) * size]
                buffer[target * size : (target + 1) * size] = moved
