"""The kernel that updates the copy of the table of cells on the device.

The kernel reads 24 bytes and writes 16 bytes for each change. A step has at most a few
hundred changes, so the launch takes most of the time.
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
    """Applies a block of changes; changes of a cell that does not exist are skipped."""
    change = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_change = change < number
    cells = tl.load(changes + change, mask=is_change, other=-1)
    positions = tl.load(changes + number + change, mask=is_change)
    bits = tl.load(changes + 2 * number + change, mask=is_change)
    inside = (cells >= 0) & (cells < count)
    tl.store(table + cells, positions, mask=inside)
    tl.store(table + count + cells, bits, mask=inside)


def update(table: torch.Tensor, changes: torch.Tensor) -> None:
    """Applies changes to the table.

    Args:
        table: int64 [2, cells].
        changes: int64 [3, changes]: cell, position, bits; the cells are distinct.
    """
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
