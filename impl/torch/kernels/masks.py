"""The kernel that makes a mask from the positions and the sequences of cells.

Each number of the mask is written once, 16 bytes per thread. The table of cells, 16 bytes
per column, is read once for up to 64 rows. Write bandwidth limits the speed. The
comparisons take nearly as long as the writes: five 32-bit operations per number, or three
if all rows belong to one sequence. Comparisons in 64 bits would take longer than the
writes, so positions and sets are reduced to 32 bits if all of them fit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lockstep.impl.torch.kernels import Table

COLUMNS = 1024
"""The number of columns of a program: 16 bytes per thread (128 threads, 2-byte type)."""

ROWS, TILES = 4, 16
"""The rows of a tile, whose limits are read together; the maximal tiles of a program."""

PROGRAMS = 512
"""The number of programs that keeps a large GPU busy."""


UNSPECIALIZED = ("count", "begin", "width", "rows", "padded", "tiles")
"""Arguments whose values must not specialize a kernel. `stride` does specialize: stores
have 16 bytes only if `stride` is known to be a multiple of 16."""


@triton.jit(do_not_specialize=UNSPECIALIZED)
def mask_kernel(
    table: tl.tensor,
    limits: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    begin: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    rows: tl.tensor,
    padded: tl.tensor,
    tiles: tl.tensor,
    SHORT_POSITIONS: tl.constexpr,
    SHORT_SETS: tl.constexpr,
    ALONE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Fills one block of columns of `tiles` · ROWS rows.

    For SHORT_POSITIONS and SHORT_SETS, see `Table`. ALONE means that all rows belong to
    one sequence. A cell that the row's sequence does not hold, or that is not in the
    table, is treated as a cell at position -1, which no row sees.

    The kernel processes the rows one by one, so that all tensors have one axis and a
    thread keeps the columns that it has read. With two axes, the compiler moves each tile
    through shared memory.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    cells = table + begin + column
    inside = column < tl.minimum(width, count - begin)
    positions = tl.load(cells, mask=inside, other=0)
    bits = tl.load(cells + count, mask=inside, other=0)
    if SHORT_POSITIONS:
        positions = positions.to(tl.int32)
    if SHORT_SETS:
        bits = bits.to(tl.int32)
    first = tl.program_id(1) * tiles * ROWS
    shown = positions
    if ALONE:
        shown = tl.where((bits & tl.load(limits).to(bits.dtype)) != 0, positions, -1)
    for tile in range(tiles):
        for number in tl.static_range(ROWS):
            row = first + tile * ROWS + number
            low = tl.load(limits + rows + row, mask=row < rows, other=0)
            high = tl.load(limits + 2 * rows + row, mask=row < rows, other=-1)
            if not ALONE:
                owner = tl.load(limits + row, mask=row < rows, other=0).to(bits.dtype)
                shown = tl.where((bits & owner) != 0, positions, -1)
            low = tl.maximum(low, 0)
            if SHORT_POSITIONS:
                # One comparison instead of two: below `low` the difference wraps around.
                # `high` may exceed 32 bits; for a row that sees nothing, high < low.
                low, high = low.to(tl.int32), tl.minimum(high, 0x7FFFFFFF).to(tl.int32)
                low = tl.where(low > high, 0x7FFFFFFF, low)
                reach = tl.maximum(high - low, 0).to(tl.uint32)
                seen = (shown - low).to(tl.uint32, bitcast=True) <= reach
            else:
                seen = (shown >= low) & (shown <= high)
            content = tl.where(seen, 0.0, float("-inf")).to(out.dtype.element_ty)
            line = out + row.to(tl.int64) * stride
            end = tl.where(row < padded, stride, 0)
            tl.store(line + column, content, mask=column < end)


def fill(
    table: Table, limits: torch.Tensor, begin: int, out: torch.Tensor, alone: bool
) -> None:
    """Launches `Kernels.mask`.

    Accesses are of 16 bytes if the row stride is a multiple of 16 numbers.
    """
    padded, width = out.shape
    blocks = triton.cdiv(width, COLUMNS)
    deep = triton.cdiv(padded, ROWS)  # in tiles
    tiles = count_tiles(blocks, deep)
    mask_kernel[(blocks, triton.cdiv(deep, tiles))](
        table.array,
        limits,
        out,
        table.array.shape[1],
        begin,
        width,
        max(width, out.stride(0)),
        limits.shape[1],
        padded,
        tiles,
        SHORT_POSITIONS=table.short_positions,
        SHORT_SETS=table.short_sets,
        ALONE=alone,
        COLUMNS=COLUMNS,
        ROWS=ROWS,
        enable_fp_fusion=False,
    )


def count_tiles(blocks: int, deep: int) -> int:
    """Returns the number of tiles of a program.

    Args:
        blocks: number of blocks of columns of the mask.
        deep: number of tiles of rows of the mask.
    """
    return max(1, min(TILES, blocks * deep // PROGRAMS))
