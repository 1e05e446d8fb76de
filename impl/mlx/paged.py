"""The memory of a paged cache on MLX."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from lockstep.impl.shared.paged_memory import BlockMemory, HostSpans, Seen

Pair = tuple[mx.array, mx.array]


class MlxBlocks(BlockMemory):
    """K and V in two arrays for each layer, [1, heads, slots, dim].

    Args:
        blocks, size, layers: see `BlockMemory`.
        heads, dims: number of heads, and the dimensions of K and V.
        dtype: the dtype of the arrays.
        fill: initial content.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        layers: int,
        heads: int,
        dims: tuple[int, int],
        dtype: mx.Dtype,
        fill: float = 0.0,
    ) -> None:
        super().__init__(blocks, size, layers)

        def make(dim: int) -> mx.array:
            return mx.full((1, heads, blocks * size, dim), fill, dtype)

        self.buffers = [[make(dims[0]), make(dims[1])] for _ in range(layers)]

    def write(
        self, layer: int, slots: Sequence[int], keys: mx.array, values: mx.array
    ) -> None:
        index = mx.array(slots)
        for buffer, array in zip(self.buffers[layer], (keys, values), strict=True):
            buffer[:, :, index] = array

    def read(self, layer: int, slots: Sequence[int]) -> Pair:
        keys, values = self.buffers[layer]
        index = mx.array(slots)
        return keys[:, :, index], values[:, :, index]

    def attend(self, queries: mx.array, pair: Pair, seen: Seen) -> mx.array:
        scale = queries.shape[-1] ** -0.5
        mask = None if seen is None else mx.array(seen)
        return mx.fast.scaled_dot_product_attention(
            queries, *pair, scale=scale, mask=mask
        )

    def prepare(self, spans: HostSpans) -> list[mx.array]:
        pairs = zip(spans.tables, spans.firsts, spans.ends, strict=True)
        positions = [(table, np.arange(first, end)) for table, first, end in pairs]
        return [
            mx.array(table[at // spans.block] * self.size + at % spans.block)
            for table, at in positions
        ]

    def attend_each(
        self, layer: int, queries: mx.array, spans: Sequence[mx.array]
    ) -> mx.array:
        keys, values = self.buffers[layer]
        attended = [
            self.attend(
                queries[:, :, row : row + 1],
                (keys[:, :, slots], values[:, :, slots]),
                None,
            )
            for row, slots in enumerate(spans)
        ]
        return self.join(attended)

    def join(self, pieces: Sequence[mx.array]) -> mx.array:
        return mx.concatenate([*pieces], axis=2)

    def copy(self, source: int, target: int) -> None:
        size = self.size
        for pair in self.buffers:
            for buffer in pair:
                moved = buffer[:, :, source * size : (source + 1) * size]
                buffer[:, :, target * size : (target + 1) * size] = moved
