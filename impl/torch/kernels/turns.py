"""The kernel that rotates some keys of all layers to another position, in place.

Each key is read once and written once; bfloat16 needs 4 bytes of traffic per number, in
accesses of 16 bytes per thread. The cosines and sines of a layer stay in the hardware
cache. Memory bandwidth limits the speed; each number takes two products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lockstep.impl.torch.kernels.rounding import convert, cuts_off

BLOCK_BYTES, BLOCK_ROWS = 4096, 128
"""The maximal bytes and rows that a program reads."""


@triton.jit(do_not_specialize=("rows", "count"))
def turn_kernel(
    keys: tl.tensor,
    index: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    HALF: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    CUTS_OFF: tl.constexpr,
) -> None:
    """Rotates a block of rows of one head in one layer; skips cells outside the pool."""
    number = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cells = tl.load(index + number, mask=number < rows, other=-1)[:, None]
    head = tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    pair = tl.arange(0, BLOCK_HALF)
    cos = tl.load(cosines + layer * HALF + pair, mask=pair < HALF, other=0)[None, :]
    sin = tl.load(sines + layer * HALF + pair, mask=pair < HALF, other=0)[None, :]
    row = (layer * tl.num_programs(1) + head) * tl.cast(count, tl.int64) + cells
    keys += row * (2 * HALF) + pair[None, :]
    inside = (cells >= 0) & (cells < count) & (pair[None, :] < HALF)
    x = tl.load(keys, mask=inside).to(tl.float32)
    y = tl.load(keys + HALF, mask=inside).to(tl.float32)
    first = convert(x * cos - y * sin, keys.dtype.element_ty, CUTS_OFF)
    second = convert(x * sin + y * cos, keys.dtype.element_ty, CUTS_OFF)
    tl.store(keys, first, mask=inside)
    tl.store(keys + HALF, second, mask=inside)


def turn(
    keys: torch.Tensor, index: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Launches the rotation.

    Args:
        keys: [layers, 1, heads, cells, dim], contiguous.
        index: int64 [rows], distinct cells.
        cos, sin: float32 [layers, dim / 2].
    """
    layers, _, heads, count, dim = keys.shape
    rows = len(index)
    if rows == 0:
        return
    half = dim // 2
    block = triton.next_power_of_2(half)
    row = 2 * block * keys.element_size()
    block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // row))
    turn_kernel[(triton.cdiv(rows, block_rows), heads, layers)](
        keys,
        index,
        cos,
        sin,
        rows,
        count,
        HALF=half,
        BLOCK_ROWS=block_rows,
        BLOCK_HALF=block,
        CUTS_OFF=cuts_off(keys.dtype),
        enable_fp_fusion=False,  # rounds as torch does
    )
