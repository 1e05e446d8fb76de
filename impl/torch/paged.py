"""The memory of a paged cache on torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lockstep.impl.shared.paged_memory import BlockMemory, HostSpans, Seen
from lockstep.impl.torch.kernels import Kernels, Pair, Spans, choose, upload


class TorchBlocks(BlockMemory):
    """K and V in two tensors for each layer, [1, heads, slots, dim].

    Args:
        blocks, size, layers: see `BlockMemory`.
        heads, dims: number of heads, and the dimensions of K and V.
        like: a tensor with the dtype and the device of K and V.
        fill: initial content.
        kernels: the kernels that move K and V; None to choose them by the device.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        layers: int,
        heads: int,
        dims: tuple[int, int],
        like: torch.Tensor,
        fill: float = 0.0,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(blocks, size, layers)
        self.kernels, self.device = kernels or choose(like.device), like.device

        def make(dim: int) -> torch.Tensor:
            return like.new_full((1, heads, blocks * size, dim), fill)

        self.buffers: list[Pair] = [(make(dims[0]), make(dims[1])) for _ in range(layers)]

    def write(
        self, layer: int, slots: Sequence[int], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        index = self.kernels.place(np.array(slots), self.device)
        self.kernels.scatter(self.buffers[layer], (keys, values), index, False)

    def read(self, layer: int, slots: Sequence[int]) -> Pair:
        index = self.kernels.place(np.array(slots), self.device)
        return self.kernels.gather(self.buffers[layer], index, False)

    def bring(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self.device)

    def attend(self, queries: torch.Tensor, pair: Pair, seen: Seen) -> torch.Tensor:
        mask = None if seen is None else torch.from_numpy(seen).to(self.device)
        shares_heads = queries.shape[1] != pair[0].shape[1]
        return scaled_dot_product_attention(
            queries, *pair, attn_mask=mask, enable_gqa=shares_heads
        )

    def prepare(self, spans: HostSpans) -> Spans:
        tables, firsts, ends = (upload(array, self.device) for array in spans[:3])
        longest = int((spans.ends - spans.firsts).max())
        return Spans(tables, firsts, ends, spans.block, self.size, longest)

    def attend_each(
        self, layer: int, queries: torch.Tensor, spans: Spans
    ) -> torch.Tensor:
        return self.kernels.attend(queries, self.buffers[layer], spans)

    def join(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([*pieces], dim=2)

    def copy(self, source: int, target: int) -> None:
        for pair in self.buffers:
            for buffer in pair:
                blocks = buffer.unflatten(2, (self.blocks, self.size))
                blocks[:, :, target] = blocks[:, :, source]
