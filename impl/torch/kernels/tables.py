"""Changes of the table of cells, brought into its copy on the device.

What it moves: 24 bytes read and 16 written for each change; a few hundred of them at most
in a step, so that the launch is all it takes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit(do_not_specialize=("count", "number"))
def update_kernel(
    table: tl.tensor,
    changes: tl.tensor,
    count: tl.tensor,
    number: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A change of a cell below 0 is none."""
    change = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = change < number
    cells = tl.load(changes + change, mask=inside, other=-1)
    positions = tl.load(changes + number + change, mask=inside)
    bits = tl.load(changes + 2 * number + change, mask=inside)
    tl.store(table + cells, positions, mask=cells >= 0)
    tl.store(table + count + cells, bits, mask=cells >= 0)


def update(table: torch.Tensor, changes: torch.Tensor) -> None:
    """table: int64 [2, cells]. changes: int64 [3, some]: cell, position, bits; each cell
    once."""
    number = changes.shape[1]
    if number:
        grid = (triton.cdiv(number, BLOCK),)
        update_kernel[grid](
            table,
            changes,
            table.shape[1],
            number,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )
