"""The device work of the causal family where the device is the host."""

from __future__ import annotations

import numpy as np
import torch

from impl.shared.batch import Ints
from impl.shared.sight import compute_sight
from impl.torch.kernels import Table
from impl.torch.kernels.plain import PlainKernels
from impl.torch.masks import make_additive


class HostKernels(PlainKernels):
    """Plain operations, and masks that are mostly copied: a comparison of every row with
    every column takes several times as long as writing the result."""

    def mask(
        self, table: Table, limits: torch.Tensor, begin: int, out: torch.Tensor
    ) -> None:
        columns = slice(begin, begin + out.shape[1])
        sight = compute_sight(limits.numpy(), *table.array.numpy()[:, columns])
        rows = limits.shape[1]
        lines = make_additive(torch.from_numpy(sight.seen), out.dtype)
        torch.index_select(lines, 0, torch.from_numpy(sight.line), out=out[:rows])
        out[rows:] = -torch.inf
        for patch in sight.patches:
            part = make_additive(torch.from_numpy(patch.seen), out.dtype)
            paste(out, patch.rows, patch.columns, part)


def paste(
    out: torch.Tensor, rows: Ints | slice, columns: Ints | slice, part: torch.Tensor
) -> None:
    """Puts [rows, columns] there."""
    if isinstance(rows, slice) and isinstance(columns, slice):
        out[rows, columns] = part
        return
    axes = zip(out.shape, (rows, columns), strict=True)
    across, along = (np.arange(size)[numbers] for size, numbers in axes)
    out[torch.from_numpy(across)[:, None], torch.from_numpy(along)] = part
