"""The device work of the causal family on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.mask_line import compute_mask_line
from lockstep.impl.torch.kernels import Table
from lockstep.impl.torch.kernels.plain import Index, PlainKernels
from lockstep.impl.torch.masks import make_additive
from lockstep.impl.torch.rope import Rope

BLOCK = 1024
"""Number of keys that are best rotated at a time: intermediate results stay in the
processor's caches, which is three times as fast as all keys at once."""


class HostKernels(PlainKernels):
    """Plain operations in blocks, and masks that are mostly copied.

    A comparison of every row with every column takes several times as long as writing the
    mask.

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
                own = head[index]  # a view of a slice, a copy of an index
                for block in own.split(self.block):
                    content = block.float()
                    swapped = content.roll(len(cos), -1)
                    block.copy_(swapped.mul_(across).addcmul_(content, along))
                if not isinstance(index, slice):
                    head.index_copy_(0, index, own)

    def mask(
        self,
        table: Table,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
        alone: bool = False,
    ) -> None:
        columns = slice(begin, begin + out.shape[1])
        mask_line = compute_mask_line(limits.numpy(), *table.array.numpy()[:, columns])
        rows = limits.shape[1]
        line = make_additive(torch.from_numpy(mask_line.line), out.dtype)
        stretches = line.unfold(0, out.shape[1], 1)
        begins = torch.from_numpy(mask_line.begins)
        torch.index_select(stretches, 0, begins, out=out[:rows])
        if rows < len(out):
            out[rows:] = -torch.inf
        for patch in mask_line.patches:
            part = make_additive(torch.from_numpy(patch.seen), out.dtype)
            paste(out, patch.rows, patch.columns, part)


def paste(
    out: torch.Tensor, rows: Ints | slice, columns: Ints | slice, part: torch.Tensor
) -> None:
    """Writes `part` [rows, columns] to these rows and columns of `out`."""
    if isinstance(rows, slice) and isinstance(columns, slice):
        out[rows, columns] = part
        return
    axes = zip(out.shape, (rows, columns), strict=True)
    across, along = (np.arange(size)[numbers] for size, numbers in axes)
    out[torch.from_numpy(across)[:, None], torch.from_numpy(along)] = part
