"""The memory of a paged cache on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.paged_memory import BlockMemory

Pair = tuple[torch.Tensor, torch.Tensor]


class TorchBlocks(BlockMemory):
    """K and V in two tensors for each layer, [slots, heads, dim].

    Args:
        blocks, size, layers: see `BlockMemory`.
        heads, dims: heads, and the dimensions of K and V.
        like: the dtype and the device.
        fill: initial content.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        layers: int,
        heads: int,
        dims: Sequence[int],
        like: torch.Tensor,
        fill: float = 0.0,
    ) -> None:
        super().__init__(blocks, size, layers)
        self.buffers = [
            tuple(like.new_full((blocks * size, heads, dim), fill) for dim in dims)
            for _ in range(layers)
        ]

    def write(
        self, layer: int, slots: Sequence[int], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        index = torch.tensor(slots, device=keys.device)
        for buffer, array in zip(self.buffers[layer], (keys, values), strict=True):
            buffer.index_copy_(0, index, array[0].transpose(0, 1).detach())

    def read(self, layer: int, slots: Sequence[int]) -> Pair:
        keys, values = self.buffers[layer]
        index = torch.tensor(slots, device=keys.device)
        return self.gather(keys, index), self.gather(values, index)

    def gather(self, buffer: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return buffer[index].transpose(0, 1)[None]

    def copy(self, source: int, target: int) -> None:
        for pair in self.buffers:
            for buffer in pair:
                blocks = buffer.view(self.blocks, self.size, *buffer.shape[1:])
                blocks[target] = blocks[source]
