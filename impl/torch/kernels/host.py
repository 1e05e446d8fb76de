"""The work of the causal caches on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep.impl.torch.kernels.plain import ROWS, Index, PlainKernels, write
from lockstep.impl.torch.rope import Rope

BLOCK = 1024
"""The number of keys to rotate at a time: intermediate results stay in the processor's
caches, which is three times as fast as rotating all keys at once."""


class HostKernels(PlainKernels):
    """Plain torch operations on the CPU. Keys are rotated in blocks.

    Args:
        block: number of keys that are rotated at a time.
    """

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block

    def turn(self, keys: torch.Tensor, index: Index, rope: Rope, distance: int) -> None:
        tokens = keys.shape[3] if isinstance(index, slice) else len(index)
        few = keys[..., 0].numel() // keys.shape[3] * tokens <= self.block
        if few or keys.requires_grad:  # blocks would be written in place
            super().turn(keys, index, rope, distance)
            return
        for layer, cos, sin in zip(keys, *rope.compute_turn(distance), strict=True):
            along, across = torch.cat((cos, cos)), torch.cat((-sin, sin))
            for head in layer[0]:  # [cells, dim]
                for block in self.cut(index):
                    if isinstance(block, slice):
                        content = head[block].float()
                    else:  # a subscript takes ten times as long
                        content = head.index_select(0, block).float()
                    swapped = content.roll(len(cos), -1)
                    turned = swapped.mul_(across).addcmul_(content, along)
                    write(head, turned, block, ROWS)

    def cut(self, index: Index) -> Iterable[Index]:
        """Cuts cells into blocks."""
        if not isinstance(index, slice):
            return index.split(self.block)
        begins = range(index.start, index.stop, self.block)
        return [slice(begin, min(begin + self.block, index.stop)) for begin in begins]
