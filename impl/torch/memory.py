"""The memory of a cache on torch: buffers of tokens, views of them, and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch

from lockstep.impl.shared.linear import Plan, Run
from lockstep.impl.shared.memory import TokenMemory as MemoryBase

Pair = tuple[torch.Tensor, torch.Tensor]


FEWEST, MOST = 4, 64
"""Limits of the number of token views made in one call. The number doubles from FEWEST to
MOST while the views are used."""


class Buffer:
    """A tensor [batch, heads, room, dim], and views of some of its tokens.

    A step spends most of its time on making views. A view made from strides takes half as
    long as a view made by an index, which torch has to parse. Each step writes to a view
    of the next token; if one call makes many such views, each takes a quarter of the
    time.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.batch, self.heads, self.room, self.dim = tensor.shape
        self.strides, self.start = tensor.stride(), tensor.storage_offset()
        self.first, self.ahead = 0, ()  # views of the tokens from `first` on

    @classmethod
    def allocate(cls, like: torch.Tensor, room: int, fill: float | None) -> Self:
        """Returns a new buffer.

        Args:
            like: an array with the batch, heads, dim, dtype and device of the buffer.
            room: number of tokens.
            fill: initial content; None for uninitialized memory.
        """
        batch, heads, _, dim = like.shape
        tensor = like.new_empty((batch, heads, room, dim))
        return cls(tensor if fill is None else tensor.fill_(fill))

    def take(self, begin: int, end: int) -> torch.Tensor:
        """Returns the tokens [begin, end), like `tensor[:, :, begin:end]`."""
        size = (self.batch, self.heads, end - begin, self.dim)
        return self.tensor.as_strided(size, self.strides, self.start + begin * self.dim)

    def take_token(self, slot: int) -> torch.Tensor:
        """Returns one token, [batch, heads, 1, dim]. Do not use it with gradients."""
        at = slot - self.first
        if not 0 <= at < len(self.ahead):
            count = 2 * len(self.ahead) if at == len(self.ahead) else 0
            count = min(max(FEWEST, count), MOST, self.room - slot)
            self.first, at = slot, 0
            self.ahead = self.take(slot, slot + count).split(1, dim=2)
        return self.ahead[at]


class TokenMemory(MemoryBase):
    """K and V of one sequence in two buffers, which are written in place and returned as
    views."""

    buffers: tuple[Buffer, Buffer] | None

    def carry_out(self, plan: Plan, arrays: Pair) -> Pair:
        columns, copied, written, returned = plan
        if copied is not None:
            self.buffers = self.lay_out(copied, columns.room, arrays)
        self.columns = columns
        assert self.buffers is not None
        keys, values = self.buffers
        count = arrays[0].shape[2]
        if count == 1 and not has_gradient(self.buffers, arrays):
            for _, column, _ in written:
                copy_both((keys.take_token(column), values.take_token(column)), arrays)
            return self.view(returned)
        for token, column, end in written:
            is_whole = end - column == count
            new = arrays if is_whole else cut(arrays, token, token + end - column)
            keys.take(column, end).copy_(new[0])
            values.take(column, end).copy_(new[1])
        return self.view(returned)

    def lay_out(
        self, copied: Sequence[Run], room: int, like: Pair
    ) -> tuple[Buffer, Buffer]:
        """Returns new buffers that begin with some columns of the present buffers.

        Args:
            copied: the columns of the present buffers to copy.
            room: number of columns of the new buffers.
            like: arrays with the batch, heads, dims, dtype and device of the buffers.
        """
        keys, values = (Buffer.allocate(array, room, self.fill) for array in like)
        column = 0
        for _, begin, end in copied:
            for old, new in zip(self.buffers or (), (keys, values), strict=True):
                new.take(column, column + end - begin).copy_(old.take(begin, end))
            column += end - begin
        return keys, values

    def view(self, runs: Sequence[Run]) -> Pair:
        assert self.buffers is not None
        keys, values = self.buffers
        _, begin, end = runs[0]
        if end - begin == keys.room:
            return keys.tensor, values.tensor
        if len(runs) > 1:
            return self.copy_runs((keys.tensor, values.tensor), runs)
        return keys.take(begin, end), values.take(begin, end)

    def copy_runs(self, arrays: Pair, runs: Sequence[Run]) -> Pair:
        return self.join([cut(arrays, begin, end) for _, begin, end in runs])

    def join(self, pieces: Sequence[Pair]) -> Pair:
        return join(pieces)

    def share(self, source: Self, first: int, end: int) -> None:
        """Copies the tokens, because memory that is written in place cannot be shared."""
        plan = self.columns.plan(first, first, end)
        self.carry_out(plan, source.read(first, end))

    def make_mask(
        self, length: int, rows: int, old: int, window: int | None, like: torch.Tensor
    ) -> torch.Tensor:
        return make_band(length, rows, old, window, like)

    def list_arrays(self) -> list[torch.Tensor]:
        return [buffer.tensor for buffer in self.buffers or ()]


def make_band(
    length: int, rows: int, old: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """Returns the mask of consecutive tokens.

    Row i, at column old + i, sees itself and the columns on its left; with a window, it
    sees `window` columns in all. Each row is the previous row, shifted by one column.
    Therefore all rows are slices of one line, and a row costs no more than a copy.

    Args:
        length: number of new tokens.
        rows: number of rows; rows from number `length` on see no column.
        old: number of old tokens.
        window: None for no window.
        like: a tensor with the dtype and the device of the mask. A bool mask is True
            where a row sees a column; a floating-point mask is 0 there, and -inf
            elsewhere.

    Returns:
        [rows, old + length].
    """
    width = old + length
    never, always = (False, True) if like.dtype == torch.bool else (-torch.inf, 0)
    seen = width if window is None else min(window, width)
    line = like.new_full((width + length - 1,), never)  # last row, then never
    line.narrow(0, width - seen, seen).fill_(always)
    stretches = line.unfold(0, width, 1)
    order = torch.arange(length - 1, -1, -1, device=like.device)
    if rows == length:
        return stretches.index_select(0, order)
    band = like.new_full((rows, width), never)
    torch.index_select(stretches, 0, order, out=band[:length])
    return band


def has_gradient(buffers: tuple[Buffer, Buffer], arrays: Pair) -> bool:
    """Returns whether a gradient flows through a write of the arrays to the buffers."""
    return torch.is_grad_enabled() and (
        arrays[0].requires_grad
        or arrays[1].requires_grad
        or buffers[0].tensor.requires_grad
        or buffers[1].tensor.requires_grad
    )


def copy_both(targets: Pair, arrays: Pair) -> None:
    """Copies both arrays in one call, without gradients."""
    torch._foreach_copy_(targets, arrays)


def cut(arrays: Pair, begin: int, end: int) -> Pair:
    """Returns a view of the tokens [begin, end)."""
    return arrays[0][:, :, begin:end], arrays[1][:, :, begin:end]


def join(pieces: Sequence[Pair]) -> Pair:
    """Returns a concatenated copy of K and V of all pieces."""
    keys, values = zip(*pieces, strict=True)
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def clone(pair: Pair) -> Pair:
    return pair[0].clone(), pair[1].clone()
