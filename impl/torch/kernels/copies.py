"""Between tokens and the cells of pools: K and V of all layers in one launch.

What it moves: each number is read once and written once, and 8 bytes for each row's cell,
once for each head. What bounds it: memory. For bfloat16 that is 4 bytes a number, at the
rate of a copy; keys of a cell are `dim` neighbours, so that every access is of 16 bytes a
thread, wherever the cells are. Where values are permuted, what is contiguous in the
tokens lies apart in the pool: the tile is transposed on the way, and a warp's stores are
neighbours only where the cells are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from impl.torch.kernels import Pair

BLOCK_BYTES = 8192
"""What a program moves at most: four accesses of 16 bytes for each of 128 threads."""


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
    PERMUTED: tl.constexpr,
    TO_POOL: tl.constexpr,
) -> None:
    """Some rows of one head. pool, tokens: where the head begins in each. A cell below 0
    is none."""
    dims = tl.arange(0, BLOCK_DIM)
    if PERMUTED:  # [dim, rows]
        dims, cells, rows = dims[:, None], cells[None, :], rows[None, :]
        pool += dims * count + cells
    else:  # [rows, dim]
        dims, cells, rows = dims[None, :], cells[:, None], rows[:, None]
        pool += cells * DIM + dims
    tokens += rows * token_row + dims * token_dim
    inside = (cells >= 0) & (dims < DIM)
    if TO_POOL:
        content = tl.load(tokens, mask=inside)
        tl.store(pool, content.to(pool.dtype.element_ty), mask=inside)
    else:
        tl.store(tokens, tl.load(pool, mask=inside), mask=inside)


@triton.jit
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
    key_dim: tl.tensor,
    value_layer: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    value_dim: tl.tensor,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    PERMUTED: tl.constexpr,
    TO_POOL: tl.constexpr,
) -> None:
    """Program (block of rows, head, 2 · layer) copies keys, 2 · layer + 1 values."""
    number = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cells = tl.load(index + number, mask=number < rows, other=-1)
    head = tl.program_id(1).to(tl.int64)
    layer = (tl.program_id(2) // 2).to(tl.int64)
    count = tl.cast(count, tl.int64)
    place = (layer * tl.num_programs(1) + head) * count
    if tl.program_id(2) % 2 == 0:
        copy_head(
            key_pool + place * KEY_DIM,
            keys + layer * key_layer + head * key_head,
            cells,
            number,
            count,
            key_row,
            key_dim,
            KEY_DIM,
            BLOCK_KEY,
            False,
            TO_POOL,
        )
    else:
        copy_head(
            value_pool + place * VALUE_DIM,
            values + layer * value_layer + head * value_head,
            cells,
            number,
            count,
            value_row,
            value_dim,
            VALUE_DIM,
            BLOCK_VALUE,
            PERMUTED,
            TO_POOL,
        )


def copy(
    pools: Pair, tokens: Pair, index: torch.Tensor, permuted: bool, to_pool: bool
) -> None:
    """pools: contiguous, for all layers or for some that are neighbours. tokens:
    [layers, 1, heads, rows, dim], of any strides. index: int64 [rows]."""
    keys, values = tokens
    layers, _, heads, rows, key_dim = keys.shape
    if rows == 0:
        return
    key_block, value_block = (triton.next_power_of_2(each.shape[4]) for each in tokens)
    largest = max(key_block, value_block) * pools[0].element_size()
    block_rows = min(triton.next_power_of_2(rows), max(1, BLOCK_BYTES // largest))
    copy_kernel[(triton.cdiv(rows, block_rows), heads, 2 * layers)](
        *pools,
        *tokens,
        index,
        rows,
        pools[0].shape[3],
        *get_strides(keys),
        *get_strides(values),
        KEY_DIM=key_dim,
        VALUE_DIM=values.shape[4],
        BLOCK_ROWS=block_rows,
        BLOCK_KEY=key_block,
        BLOCK_VALUE=value_block,
        PERMUTED=permuted,
        TO_POOL=to_pool,
        enable_fp_fusion=False,
    )


def get_strides(tokens: torch.Tensor) -> tuple[int, int, int, int]:
    layer, _, head, row, dim = tokens.stride()
    return layer, head, row, dim
