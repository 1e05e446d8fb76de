"""The work on the device as plain torch operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from lockstep.impl.shared.batch import Ints, as_slice
from lockstep.impl.torch.kernels import Pair, Spans, Table, upload
from lockstep.impl.torch.masks import make_additive
from lockstep.impl.torch.rope import Rope


@dataclass(frozen=True)
class Padded:
    """An index of cells in a tensor, which is read whenever the index is used. Negative
    cells are skipped."""

    cells: torch.Tensor


Index = slice | torch.Tensor | Padded

WIDE = torch.complex128
"""Torch copies to an index number by number. As 16-byte numbers, 64 tokens with 8 heads
of dimension 128 in float16 take a third of the time."""

ROWS, COLUMNS = -2, -1
"""The axis of the cells in a pool; COLUMNS in permuted values."""


class PlainKernels:
    """Implements `impl.torch.kernels.Kernels` on every device that torch supports."""

    alignment = 1

    def place(self, cells: Ints, device: torch.device) -> Index:
        """Returns a slice if the cells are consecutive, because writing to a slice is a
        copy, not a scatter."""
        index = as_slice(cells)
        return index if isinstance(index, slice) else upload(cells, device)

    def place_fixed(self, cells: torch.Tensor) -> Index:
        return Padded(cells)

    def scatter(self, pools: Pair, tokens: Pair, index: Index, permuted: bool) -> None:
        keys, values = tokens
        if isinstance(index, Padded):
            rows = (index.cells >= 0).nonzero()[:, 0]
            keys, values = keys[..., rows, :], values[..., rows, :]
            index = index.cells[rows]
        write(pools[0], keys, index, ROWS)
        if permuted:
            write(pools[1], values.mT, index, COLUMNS)
        else:
            write(pools[1], values, index, ROWS)

    def gather(self, pools: Pair, index: Index, permuted: bool) -> Pair:
        keys, values = pools
        axis = COLUMNS if permuted else ROWS
        return read(keys, index, ROWS), read(values, index, axis)

    def turn(self, keys: torch.Tensor, index: Index, rope: Rope, distance: int) -> None:
        write(keys, rope.turn(read(keys, index, ROWS), distance), index, ROWS)

    def mask(
        self,
        table: Table,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
        alone: bool = False,
    ) -> None:
        out.fill_(-torch.inf)
        positions, bits = table.array[:, begin : begin + out.shape[1]]
        owner, low, high = limits[:, :, None]  # each [rows, 1]
        seen = (bits & owner) != 0  # [rows, columns]
        seen &= positions >= low
        seen &= positions <= high
        out[: limits.shape[1]].masked_fill_(seen, 0)

    def update(self, table: torch.Tensor, changes: torch.Tensor) -> None:
        changes = changes[:, changes[0] >= 0]
        table.index_copy_(1, changes[0], changes[1:])

    def see(
        self,
        firsts: torch.Tensor,
        starts: torch.Tensor,
        length: int,
        span: tuple[int, int],
        window: int | None,
        like: torch.Tensor,
        cursor: int | None = None,
    ) -> torch.Tensor:
        places = torch.arange(length, device=firsts.device).view(-1, 1)
        queries = (firsts.view(-1, 1, 1, 1) + places).clamp(min=0)
        ends = queries + starts.view(-1, 1, 1, 1) if cursor is None else places + cursor
        ages = ends - torch.arange(*span, device=firsts.device)
        if window is not None:
            ages = ages % window
        seen = (ages <= queries) & (ages >= 0)
        return seen if like.dtype == torch.bool else make_additive(seen, like.dtype)

    def attend(self, queries: torch.Tensor, pools: Pair, spans: Spans) -> torch.Tensor:
        shares_heads = queries.shape[1] != pools[0].shape[1]
        limits = torch.stack((spans.firsts, spans.ends)).T.tolist()
        attended = []
        for row, (first, end) in enumerate(limits):
            positions = torch.arange(first, end, device=queries.device)
            blocks = spans.blocks[row, positions // spans.block]
            slots = blocks * spans.size + positions % spans.block
            result = scaled_dot_product_attention(
                queries[:, :, row : row + 1],
                *self.gather(pools, slots, False),
                enable_gqa=shares_heads,
            )
            attended.append(result)
        return torch.cat(attended, dim=2)


def write(pool: torch.Tensor, tokens: torch.Tensor, index: Index, axis: int) -> None:
    if isinstance(index, slice):
        narrow(pool, index, axis).copy_(tokens)
    else:
        assert isinstance(index, torch.Tensor)
        tokens = tokens.to(pool.dtype)
        if axis == ROWS and can_widen(pool) and can_widen(tokens):
            pool, tokens = pool.view(WIDE), tokens.view(WIDE)
        pool.index_copy_(axis, index, tokens)


def can_widen(array: torch.Tensor) -> bool:
    """Returns whether an array can be viewed in 16-byte numbers, for a copy on the CPU
    without gradients."""
    size = array.itemsize
    *strides, last = array.stride()
    sizes = (array.shape[-1], array.storage_offset(), *strides)
    return (
        last == 1
        and not any(number * size % WIDE.itemsize for number in sizes)
        and not array.requires_grad
        and array.device.type == "cpu"
    )


def read(pool: torch.Tensor, index: Index, axis: int) -> torch.Tensor:
    """Returns a copy of the cells."""
    if isinstance(index, slice):
        view = narrow(pool, index, axis)
        return view.clone(memory_format=torch.contiguous_format)
    assert isinstance(index, torch.Tensor)
    return pool.index_select(axis, index)


def narrow(pool: torch.Tensor, cells: slice, axis: int) -> torch.Tensor:
    """Returns a view of consecutive cells, in half the time of a subscript."""
    return pool.narrow(axis, cells.start, cells.stop - cells.start)
