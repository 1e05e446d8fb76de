"""Reads and writes selected cells of a pool."""

from __future__ import annotations

import mlx.core as mx

from lockstep.impl.mlx.wide import read_wide, write_wide
from lockstep.impl.shared.batch import Ints, as_slice

ROWS, COLUMNS = 2, 3
"""The axis of the cells in a pool [1, heads, cells, dim]; COLUMNS if it is permuted."""

SMALL = 1 << 16
"""Up to this count, numbers are written to a slice without conversion: in a step, each
operation wakes the evaluating thread, and wide numbers need three more operations."""


class Places:
    """A selection of cells; one selection serves all layers.

    Consecutive, ascending cells are addressed by a slice, and a write is one copy. Other
    cells are addressed by an index, and a write is a scatter by `put_along_axis`. In a
    pool of 4096 cells, this scatter takes two thirds of the time of assigning to `pool[:,
    :, index]`, and a sixth of the time if the cells are columns.

    Args:
        cells: the numbers of the cells.
        small: the largest number of values that are written to a slice without
            conversion.
    """

    def __init__(self, cells: Ints, small: int = SMALL) -> None:
        self.slice: slice | None = None
        self.cells, self.small = cells, 0
        numbers = as_slice(cells)
        if isinstance(numbers, slice):
            self.slice, self.small = numbers, small
            return
        self.index = {
            ROWS: mx.array(cells[None, None, :, None]),
            COLUMNS: mx.array(cells[None, None, None, :]),
        }

    def read(self, pool: mx.array, axis: int) -> mx.array:
        """Returns a copy of the content of the cells."""
        if axis == ROWS:
            return read_wide(pool, len(self.cells), self.read_rows)
        if self.slice is None:
            return mx.take(pool, mx.array(self.cells), axis=axis)
        return mx.contiguous(pool[..., self.slice])

    def read_rows(self, pool: mx.array) -> mx.array:
        if self.slice is None:
            return mx.take(pool, mx.array(self.cells), axis=ROWS)
        return mx.contiguous(pool[:, :, self.slice])

    def write(self, pool: mx.array, tokens: mx.array, axis: int) -> mx.array:
        """Returns the pool after `tokens` are written to the cells.

        The pool is written in place if nothing else refers to it. Callers should
        therefore drop the pool that they pass, and keep the result.
        """
        if axis == ROWS:
            return write_wide(pool, tokens, self.write_rows, self.small)
        if self.slice is None:
            return mx.put_along_axis(pool, self.index[axis], tokens, axis)
        pool[..., self.slice] = tokens
        return pool

    def write_rows(self, pool: mx.array, tokens: mx.array) -> mx.array:
        if self.slice is None:
            return mx.put_along_axis(pool, self.index[ROWS], tokens, ROWS)
        pool[:, :, self.slice] = tokens
        return pool
