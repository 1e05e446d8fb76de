"""The pool of a batch on torch, which is written in place and returned as views."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from lockstep.impl.shared.pool import RowPool as RowPoolBase
from lockstep.impl.torch.memory import (
    Buffer,
    Pair,
    clone,
    copy_both,
    has_gradient,
    join,
)

ALIGNMENT = 64
"""The alignment of an array, in bytes."""


class RowPool(RowPoolBase):
    """K and V of the rows of a batch.

    Args:
        rows, window, step: see `impl.shared.pool.RowPool`.
        fill: initial content of the memory.

    Attributes:
        buffers: views of the rows' slots; None before the first write.
        lines: [rows, heads, 1], the number of the first column of each row and head in
            the flat pool; made when it is needed.
    """

    arrays: Pair | None

    def __init__(self, rows: int, window: int | None, step: int, fill: float) -> None:
        super().__init__(rows, window, step)
        self.fill = fill
        self.settle()

    def settle(self) -> None:
        self.buffers: tuple[Buffer, Buffer] | None = None
        self.lines: torch.Tensor | None = None
        if self.arrays is not None:
            keys, values = self.arrays
            rows = slice(self.first, self.first + self.rows)
            self.buffers = Buffer(keys[rows]), Buffer(values[rows])

    def allocate(
        self, like: torch.Tensor, slots: int, room: int, rows_kept: int
    ) -> torch.Tensor:
        shape = (slots, like.shape[1], room, like.shape[3])
        clears = self.fill == 0 and like.device.type == "cpu"
        array = clear(shape, like.dtype) if clears else like.new_full(shape, self.fill)
        if rows_kept:
            array[:rows_kept].copy_(like[self.first : self.first + rows_kept])
        return array

    def write_slots(self, slot: int, column: int, arrays: Pair) -> None:
        assert self.arrays is not None
        slots, _, length, _ = arrays[0].shape
        index = slice(slot, slot + slots), slice(None), slice(column, column + length)
        for target, array in zip(self.arrays, arrays, strict=True):
            target[index].copy_(array)

    def write_rows(self, column: int, arrays: Pair) -> None:
        assert self.buffers is not None
        keys, values = self.buffers
        end = column + arrays[0].shape[2]
        if end == column + 1 and not has_gradient(self.buffers, arrays):
            copy_both((keys.take_token(column), values.take_token(column)), arrays)
        else:
            keys.take(column, end).copy_(arrays[0])
            values.take(column, end).copy_(arrays[1])

    def scatter(self, ends: torch.Tensor, skip: int, arrays: Pair) -> None:
        """Writes all rows and heads of K, or V, in one operation."""
        assert self.arrays is not None
        length = arrays[0].shape[2]
        columns = ends.view(-1, 1, 1)
        if length > 1 or skip:
            places = torch.arange(skip, skip + length, device=columns.device)
            columns = columns + places
        if self.window == self.room:
            columns = columns % self.room
        cells = (self.get_lines() + columns).view(-1)
        for target, array in zip(self.arrays, arrays, strict=True):
            if array.shape[3]:
                flat = target.view(-1, target.shape[3])
                flat.index_copy_(0, cells, array.reshape(-1, array.shape[3]))

    def get_lines(self) -> torch.Tensor:
        assert self.arrays is not None
        if self.lines is None:
            heads, device = self.arrays[0].shape[1], self.arrays[0].device
            begin, end = self.first * heads, (self.first + self.rows) * heads
            lines = torch.arange(begin, end, device=device) * self.room
            self.lines = lines.view(self.rows, heads, 1)
        return self.lines

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        return self.buffers[0].take(begin, end), self.buffers[1].take(begin, end)

    def join(self, pieces: Sequence[Pair]) -> Pair:
        return join(pieces)

    def copy(self, arrays: Pair) -> Pair:
        return clone(arrays)

    def clone(self) -> RowPool:
        copied = RowPool(self.rows, self.window, self.step, self.fill)
        if self.arrays is not None:
            copied.arrays, copied.form = clone(self.read(0, self.room)), self.form
            copied.slots, copied.room = self.rows, self.room
            copied.starts = self.starts
            copied.settle()
        return copied


def clear(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns an array of zeros in memory that the system clears on first access.

    `torch.zeros` writes all zeros immediately. numpy does not, and requests large pages,
    so that the system has fewer pages to clear. For a pool of 0.4 GB of which three
    quarters were then filled, numpy took an eighth of the time.
    """
    size = prod(shape) * dtype.itemsize
    array = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -array.ctypes.data % ALIGNMENT
    return torch.from_numpy(array[begin : begin + size]).view(dtype).view(shape)
