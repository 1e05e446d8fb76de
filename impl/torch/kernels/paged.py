"""The kernel for attention of one token of each request over its block table.

K and V of the attended positions are read once for each head of K, even if several query
heads share this head; the number of a block (4 bytes) is read once for each head. Memory
bandwidth limits the speed. A request is cut into parts, so that even a few requests keep
the whole device busy. A second launch joins the results of the parts, which are a few
numbers for each part.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lockstep.impl.torch.kernels import Pair, Spans
from lockstep.impl.torch.kernels.rounding import convert, cuts_off

COLUMNS = 64
"""The number of positions that a program processes at a time."""

PROGRAMS, MOST_PARTS = 512, 64
"""The intended number of programs, and the maximal number of parts of a request."""

LEAST = 16
"""The number of rows of the smallest tile that the tensor cores multiply."""

UNSPECIALIZED = ("places", "slots", "part")


# Functions of Triton's own library cannot be called in the interpreter if triton was
# imported without it.


@triton.jit
def add(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a + b


@triton.jit
def get_larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def attend_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    blocks: tl.tensor,
    firsts: tl.tensor,
    ends: tl.tensor,
    sums: tl.tensor,
    limits: tl.tensor,
    places: tl.tensor,
    slots: tl.tensor,
    share_size: tl.tensor,
    scale: tl.tensor,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    KEY_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDENS: tl.constexpr,
) -> None:
    """Attends to one part of one request, for the queries that share a head of K and V.

    Slots that are not in the pools are not seen.

    Args:
        queries: [requests, heads * GROUP, DIM].
        keys, values: [heads, slots, DIM] and [heads, slots, WIDTH].
        blocks, firsts, ends: see `Spans`.
        sums: float32 [requests, heads * GROUP, parts, WIDTH], weighted sums of values.
        limits: float32 [2, requests, heads * GROUP, parts], the largest score and the sum
            of weights.
        places: number of entries of a table.
        slots: number of slots of the pools.
        share_size: number of positions of a part.
        scale: the scale of scores, divided by the natural logarithm of 2.
        ROWS, KEY_DIM, VALUE_DIM: GROUP, DIM and WIDTH, rounded up to powers of two.
        WIDENS: whether to multiply in float32; the interpreter treats bfloat16 as
            integers.
    """
    request, head = tl.program_id(0), tl.program_id(1)
    heads, chunks = tl.num_programs(1), tl.num_programs(2)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, KEY_DIM)
    wide = tl.arange(0, VALUE_DIM)
    row = request * heads * GROUP + head * GROUP + rows
    is_head = rows < GROUP
    inside = is_head[:, None] & (dims < DIM)[None, :]
    query = tl.load(queries + row[:, None] * DIM + dims[None, :], mask=inside, other=0.0)

    if WIDENS:
        query = query.to(tl.float32)
    begin = tl.load(firsts + request) + tl.program_id(2) * share_size
    end = tl.minimum(tl.load(ends + request), begin + share_size)
    keys += head.to(tl.int64) * slots * DIM
    values += head.to(tl.int64) * slots * WIDTH
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.full((ROWS,), 0.0, tl.float32)
    total = tl.full((ROWS, VALUE_DIM), 0.0, tl.float32)
    for first in range(begin, end, COLUMNS):
        position = first + tl.arange(0, COLUMNS)
        seen = position < end
        slot_in_block = position // BLOCK
        block = tl.load(blocks + request * places + slot_in_block, mask=seen, other=0)
        slot = block.to(tl.int64) * SIZE + position % BLOCK
        seen &= (slot >= 0) & (slot < slots)
        key = tl.load(
            keys + slot[:, None] * DIM + dims[None, :],
            mask=seen[:, None] & (dims < DIM)[None, :],
            other=0.0,
        )
        if WIDENS:
            key = key.to(tl.float32)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        largest = tl.maximum(most, tl.reduce(score, 1, get_larger))
        share = tl.exp2(score - largest[:, None])
        shrink = tl.exp2(most - largest)
        value = tl.load(
            values + slot[:, None] * WIDTH + wide[None, :],
            mask=seen[:, None] & (wide < WIDTH)[None, :],
            other=0.0,
        )
        if WIDENS:
            value = value.to(tl.float32)
        mixed = tl.dot(share.to(value.dtype), value, input_precision="ieee")
        total = total * shrink[:, None] + mixed
        weight = weight * shrink + tl.reduce(share, 1, add)
        most = largest

    cell = row * chunks + tl.program_id(2)
    inside = is_head[:, None] & (wide < WIDTH)[None, :]
    tl.store(sums + cell[:, None] * WIDTH + wide[None, :], total, mask=inside)
    tl.store(limits + cell, most, mask=is_head)
    count = tl.num_programs(0) * heads * GROUP * chunks
    tl.store(limits + count + cell, weight, mask=is_head)


@triton.jit
def join_kernel(
    sums: tl.tensor,
    limits: tl.tensor,
    out: tl.tensor,
    chunks: tl.tensor,
    WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    CUTS_OFF: tl.constexpr,
) -> None:
    """Joins the parts of one query; for the arguments see `attend_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    number, wide = tl.arange(0, PARTS), tl.arange(0, VALUE_DIM)
    cell, there = row * chunks + number, number < chunks
    largest = tl.load(limits + cell, mask=there, other=float("-inf"))
    count = tl.num_programs(0).to(tl.int64) * chunks
    weight = tl.load(limits + count + cell, mask=there, other=0.0)
    share = tl.exp2(largest - tl.reduce(largest, 0, get_larger))
    inside = there[:, None] & (wide < WIDTH)[None, :]
    total = tl.load(sums + cell[:, None] * WIDTH + wide[None, :], mask=inside, other=0.0)
    mixed = tl.reduce(total * share[:, None], 0, add)
    mixed /= tl.reduce(weight * share, 0, add)
    cells = out + row * WIDTH + wide
    content = convert(mixed, out.dtype.element_ty, CUTS_OFF)
    tl.store(cells, content, mask=wide < WIDTH)


def attend(queries: torch.Tensor, pools: Pair, spans: Spans) -> torch.Tensor:
    """Computes attention of one token of each request.

    Args:
        queries: [1, query heads, requests, key_dim].
        pools: K and V [1, heads, slots, dim].
        spans: the spans of the requests; each request attends to at least one position.

    Returns:
        [1, query heads, requests, value_dim].
    """
    keys, values = pools
    _, heads, slots, dim = keys.shape
    width = values.shape[3]
    query_heads, requests = queries.shape[1:3]
    group = query_heads // heads
    wanted = min(MOST_PARTS, max(1, PROGRAMS // (requests * heads)))
    share_size = triton.cdiv(triton.cdiv(spans.longest, wanted), COLUMNS) * COLUMNS
    chunks = triton.cdiv(spans.longest, share_size)
    rows = queries[0].transpose(0, 1).contiguous()  # [requests, query heads, key_dim]
    sums = rows.new_empty((requests, query_heads, chunks, width), dtype=torch.float32)
    limits = sums.new_empty((2, requests, query_heads, chunks))
    out = rows.new_empty((requests, query_heads, width))
    sizes = {"WIDTH": width, "VALUE_DIM": max(LEAST, triton.next_power_of_2(width))}
    attend_kernel[(requests, heads, chunks)](
        rows,
        keys,
        values,
        spans.blocks,
        spans.firsts,
        spans.ends,
        sums,
        limits,
        spans.blocks.shape[1],
        slots,
        share_size,
        dim**-0.5 * 1.4426950408889634,
        BLOCK=spans.block,
        SIZE=spans.size,
        GROUP=group,
        ROWS=max(LEAST, triton.next_power_of_2(group)),
        DIM=dim,
        KEY_DIM=max(LEAST, triton.next_power_of_2(dim)),
        COLUMNS=COLUMNS,
        WIDENS=cuts_off(keys.dtype),
        **sizes,
    )
    join_kernel[(requests * query_heads,)](
        sums,
        limits,
        out,
        chunks,
        PARTS=triton.next_power_of_2(chunks),
        CUTS_OFF=cuts_off(out.dtype),
        **sizes,
    )
    return out.transpose(0, 1)[None]
