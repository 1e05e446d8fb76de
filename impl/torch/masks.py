"""Masks for torch's scaled_dot_product_attention."""

from __future__ import annotations

import numpy as np
import torch

from lockstep.impl.shared.mask_line import Sight

BOOLEAN = torch.empty(0, dtype=torch.bool)
"""The default of `mask`: boolean masks on the CPU."""

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their size in bytes."""

NEVER = {
    dtype: torch.tensor(-torch.inf, dtype=dtype).view(INTEGERS[dtype.itemsize]).item()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""The bits of -inf, by dtype."""


EITHER = {
    dtype: np.array([never, 0], f"int{8 * dtype.itemsize}")
    for dtype, never in NEVER.items()
}
"""The bits of -inf and of 0, by dtype."""


class HostMasks:
    """Masks of passes on the CPU; each mask reuses the memory of the previous mask.

    Writing to new memory takes several times as long, because the system provides it page
    by page. Small masks are written by numpy, because a numpy call takes a third of the
    time of a torch call.

    Args:
        dtype: the dtype of the masks.
        small: the largest number of values for which rows are written one by one.

    Attributes:
        memory: the memory of the largest mask so far.
        numbers: the same memory as integers, for numpy.
    """

    def __init__(self, dtype: torch.dtype, small: int) -> None:
        self.dtype, self.either, self.small = dtype, EITHER[dtype], small
        self.memory = torch.empty(0, dtype=dtype)

    def make(self, sight: Sight, first: int, width: int, rows: int) -> torch.Tensor:
        """Returns a mask; see `Sight.compute_line`."""
        if len(self.memory) < rows * width:
            with torch.inference_mode(False):  # others may use it
                self.memory = torch.empty(rows * width, dtype=self.dtype)
            self.numbers = self.memory.view(INTEGERS[self.dtype.itemsize]).numpy()
        mask = self.memory.as_strided((rows, width), (width, 1))
        numbers = self.numbers[: rows * width].reshape(rows, width)
        unseen = self.either[0]
        if sight.batch.is_step:
            numbers.fill(unseen)
            sight.paint(numbers, first)
            return mask
        if rows * width <= self.small:
            numbers.fill(unseen)
            sight.paint_each(numbers, first, self.either)
            return mask
        mask_line = sight.compute_line(first, width, rows, unseen)
        line = torch.from_numpy(mask_line.line).view(self.dtype)
        stretches = line.unfold(0, width, 1)
        begins = torch.from_numpy(mask_line.begins)
        torch.index_select(stretches, 0, begins, out=mask)
        for patch in mask_line.patches:
            numbers[patch.get_place()] = self.either.take(patch.seen)
        return mask


def make_additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns 0 where `seen` is True, and -inf elsewhere.

    `seen - 1` has no bit set where `seen` is True, and all bits elsewhere. On the CPU,
    `torch.where` takes four times as long.
    """
    bits = (seen.view(torch.int8) - 1).to(INTEGERS[dtype.itemsize])
    return bits.bitwise_and_(NEVER[dtype]).view(dtype)
