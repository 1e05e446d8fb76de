"""The kernel that copies K and V of all layers between tokens and cells, in one launch.

Each number is read once and written once, and the cell of each row (8 bytes) is read once
for each head. Memory bandwidth limits the speed, as for a plain copy: bfloat16 needs 4
bytes of traffic per number. The key of a cell is `dim` contiguous numbers, so every
access has 16 bytes per thread, wherever the cells are. With permuted values, the
numbers of a token are contiguous, but the same numbers are not contiguous in the pool.
Therefore the kernel transposes each tile. A warp then stores to contiguous memory only
if its cells are contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lockstep.impl.torch.kernels import Pair
from lockstep.impl.torch.kernels.rounding import convert, cuts_off

BLOCK_BYTES, BLOCK_ROWS = 8192, 128
"""The maximal size of a program's block: four 16-byte accesses of each of 128 threads."""

UNSPECIALIZED = (
    *("rows", "count"),
    *(f"{name}_{axis}" for name in ("key", "value") for axis in ("layer", "head", "row")),
    *("key_dim", "value_dim"),
)
"""Arguments whose values must not specialize a kernel: a pass with another number of rows
must not wait for the compiler. Relevant strides are passed as constants."""


@triton.jit
def copy_head(
    pool: tl.tensor,
    tokens: tl.tensor,
    cells: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    token_row: tl.tensor,
    token_dim: tl.tensor,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    NEAR: tl.constexpr,
    PERMUTED: tl.constexpr,
    TO_POOL: tl.constexpr,
    CUTS_OFF: tl.constexpr,
) -> None:
    """Copies some rows of one head.

    Args:
        pool, tokens: pointers to the head in the pool and in the tokens.
        cells, rows: cell and row number of each row to copy; a cell that the pool does
            not have is skipped.
        count: number of cells in the pool.
        token_row, token_dim: strides of the tokens.
        DIM: numbers of a row.
        BLOCK_DIM: DIM rounded up to a power of two.
        NEAR: the axis along which the tokens are contiguous: "dims", "rows" or "none".
        PERMUTED: whether the pool is [dim, cells].
        TO_POOL: direction of the copy.
        CUTS_OFF: see `convert`.
    """
    dims = tl.arange(0, BLOCK_DIM)
    if PERMUTED:  # [dim, rows]
        dims, cells, rows = dims[:, None], cells[None, :], rows[None, :]
        pool += dims * count + cells
    else:  # [rows, dim]
        dims, cells, rows = dims[None, :], cells[:, None], rows[:, None]
        pool += cells * DIM + dims
    if NEAR == "dims":
        tokens += rows * token_row + dims
    elif NEAR == "rows":
        tokens += rows + dims * token_dim
    else:
        tokens += rows * token_row + dims * token_dim
    inside = (cells >= 0) & (cells < count) & (dims < DIM)
    if TO_POOL:
        content = convert(tl.load(tokens, mask=inside), pool.dtype.element_ty, CUTS_OFF)
        tl.store(pool, content, mask=inside)
    else:
        tl.store(tokens, tl.load(pool, mask=inside), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def copy_kernel(
    key_pool: tl.tensor,
    value_pool: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    index: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    key_layer: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_layer: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    key_dim: tl.tensor,
    value_dim: tl.tensor,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    KEY_UNIT: tl.constexpr,
    VALUE_UNIT: tl.constexpr,
    KEY_NEAR: tl.constexpr,
    VALUE_NEAR: tl.constexpr,
    PERMUTED: tl.constexpr,
    TO_POOL: tl.constexpr,
    CUTS_OFF: tl.constexpr,
) -> None:
    """Copies one block of rows of one head in one layer. The last index of a program is 2
    · layer to copy keys, and 2 · layer + 1 to copy values.

    …_UNIT is the unit of the layer, head and row strides of the tokens.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cells = tl.load(index + number, mask=number < rows, other=-1)
    head = tl.program_id(1).to(tl.int64)
    layer = (tl.program_id(2) // 2).to(tl.int64)
    count = tl.cast(count, tl.int64)
    first = (layer * tl.num_programs(1) + head) * count
    if tl.program_id(2) % 2 == 0:
        copy_head(
            key_pool + first * KEY_DIM,
            keys + (layer * key_layer + head * key_head) * KEY_UNIT,
            cells,
            number,
            count,
            key_row * KEY_UNIT,
            key_dim,
            KEY_DIM,
            BLOCK_KEY,
            KEY_NEAR,
            False,
            TO_POOL,
            CUTS_OFF,
        )
    else:
        copy_head(
            value_pool + first * VALUE_DIM,
            values + (layer * value_layer + head * value_head) * VALUE_UNIT,
            cells,
            number,
            count,
            value_row * VALUE_UNIT,
            value_dim,
            VALUE_DIM,
            BLOCK_VALUE,
            VALUE_NEAR,
            PERMUTED,
            TO_POOL,
            CUTS_OFF,
        )


def copy(
    pools: Pair, tokens: Pair, index: torch.Tensor, permuted: bool, to_pool: bool
) -> None:
    """Launches the copy.

    Args:
        pools: contiguous pools of all layers, or of adjacent layers.
        tokens: [layers, 1, heads, rows, dim], of any strides.
        index: int64 [rows], the cells.
        permuted: whether the pool of values is permuted.
        to_pool: True to copy from the tokens to the pools, False to copy back.
    """
    keys, values = tokens
    layers, _, heads, rows, key_dim = keys.shape
    if rows == 0:
        return
    key_block, value_block = (triton.next_power_of_2(array.shape[4]) for array in tokens)
    largest = max(key_block, value_block) * pools[0].element_size()
    # In a transposed tile each number needs its own address, in a register.
    most = BLOCK_BYTES // 2 if permuted else BLOCK_BYTES
    block_rows = max(1, min(BLOCK_ROWS, most // largest))
    key_strides, key_unit = get_strides(keys)
    value_strides, value_unit = get_strides(values)
    copy_kernel[(triton.cdiv(rows, block_rows), heads, 2 * layers)](
        *pools,
        *tokens,
        index,
        rows,
        pools[0].shape[3],
        *key_strides,
        *value_strides,
        keys.stride(4),
        values.stride(4),
        KEY_DIM=key_dim,
        VALUE_DIM=values.shape[4],
        BLOCK_ROWS=block_rows,
        BLOCK_KEY=key_block,
        BLOCK_VALUE=value_block,
        KEY_UNIT=key_unit,
        VALUE_UNIT=value_unit,
        KEY_NEAR=find_near(keys),
        VALUE_NEAR=find_near(values),
        PERMUTED=permuted,
        TO_POOL=to_pool,
        CUTS_OFF=cuts_off(pools[0].dtype),
        enable_fp_fusion=False,
    )


def get_strides(tokens: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """Returns the layer, head and row strides divided by their unit, and the unit.

    The unit is 16 if all are multiples of it, which allows accesses of 16 bytes.
    """
    layer, _, head, row, _ = tokens.stride()
    apart = layer, head, row
    unit = 1 if any(stride % 16 for stride in apart) else 16
    return tuple(stride // unit for stride in apart), unit


def find_near(tokens: torch.Tensor) -> str:
    """Returns the contiguous axis: "dims", "rows" or "none"."""
    if tokens.stride(4) == 1:
        return "dims"
    return "rows" if tokens.stride(3) == 1 else "none"
