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

from lockstep.impl.torch.kernels import Pair
from lockstep.impl.torch.kernels.rounding import convert, cuts_off

BLOCK_BYTES, BLOCK_ROWS = 8192, 128
"""What a program moves at most: four accesses of 16 bytes for each of 128 threads."""

UNSPECIALIZED = (
    *("rows", "count"),
    *(f"{name}_{axis}" for name in ("key", "value") for axis in ("layer", "head", "row")),
    *("key_dim", "value_dim"),
)
"""Arguments for whose values there are no kernels of their own: a pass of another number
of rows must not wait for a compiler. What a kernel must know of strides, it is told."""


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
    """Some rows of one head. pool, tokens: where the head begins in each. NEAR: the
    axis of tokens along which numbers are neighbours. A cell below 0 is none."""
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
    inside = (cells >= 0) & (dims < DIM)
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
    """Program (block of rows, head, 2 · layer) copies keys, 2 · layer + 1 values.
    …_UNIT: of the strides of layers, heads and rows of tokens."""
    number = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cells = tl.load(index + number, mask=number < rows, other=-1)
    head = tl.program_id(1).to(tl.int64)
    layer = (tl.program_id(2) // 2).to(tl.int64)
    count = tl.cast(count, tl.int64)
    place = (layer * tl.num_programs(1) + head) * count
    if tl.program_id(2) % 2 == 0:
        copy_head(
            key_pool + place * KEY_DIM,
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
            value_pool + place * VALUE_DIM,
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
    """pools: contiguous, for all layers or for some that are neighbours. tokens:
    [layers, 1, heads, rows, dim], of any strides. index: int64 [rows]."""
    keys, values = tokens
    layers, _, heads, rows, key_dim = keys.shape
    if rows == 0:
        return
    key_block, value_block = (triton.next_power_of_2(each.shape[4]) for each in tokens)
    largest = max(key_block, value_block) * pools[0].element_size()
    # Each number of a transposed tile has an address of its own, in a register.
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
    """Those of layers, heads and rows, and their unit: 16 if all are multiples of it,
    which lets 16 bytes be read at once."""
    layer, _, head, row, _ = tokens.stride()
    apart = layer, head, row
    unit = 1 if any(stride % 16 for stride in apart) else 16
    return tuple(stride // unit for stride in apart), unit


def find_near(tokens: torch.Tensor) -> str:
    """ "dims", "rows" or "none"."""
    if tokens.stride(4) == 1:
        return "dims"
    return "rows" if tokens.stride(3) == 1 else "none"
