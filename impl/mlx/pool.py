"""The pool of a batch on MLX, which is written through slices. Returned arrays keep their
content.

A write is done in place if nothing else refers to the arrays when the write is evaluated;
see `impl.mlx.memory`. Arrays that were read from the pool refer to its arrays until they
are evaluated. Copies of rows are therefore evaluated before the pool is written again.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.memory import Pair, join, make_compact
from lockstep.impl.mlx.wide import can_widen, write_wide
from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.pool import RowPool as RowPoolBase


class RowPool(RowPoolBase):
    """K and V of the rows of a batch.

    Args:
        rows, window, step: see `impl.shared.pool.RowPool`.
        fill: initial content of the memory.
    """

    arrays: Pair | None

    def __init__(self, rows: int, window: int | None, step: int, fill: float) -> None:
        super().__init__(rows, window, step)
        self.fill = fill
        self.settle()

    def settle(self) -> None:
        self.lines: Ints | None = None

    def allocate(self, like: mx.array, slots: int, room: int, rows_kept: int) -> mx.array:
        _, heads, _, dim = like.shape
        if not rows_kept:
            return mx.full((slots, heads, room, dim), self.fill, like.dtype)
        old = like[self.first : self.first + rows_kept]
        line = mx.full((1, 1, 1, dim), self.fill, like.dtype)
        if can_widen(like):
            old, line = old.view(mx.uint64), line.view(mx.uint64)
        shape = (slots - rows_kept, heads, room, line.shape[3])
        array = mx.concatenate([old, mx.broadcast_to(line, shape)])
        return array.view(like.dtype)

    def write_slots(self, slot: int, column: int, arrays: Pair) -> None:
        assert self.arrays is not None
        slots, _, length, _ = arrays[0].shape

        def write(pool: mx.array, tokens: mx.array) -> mx.array:
            pool[slot : slot + slots, :, column : column + length] = tokens
            return pool

        keys, values = self.arrays
        self.arrays = (
            write_wide(keys, arrays[0], write),
            write_wide(values, arrays[1], write),
        )

    def write_rows(self, column: int, arrays: Pair) -> None:
        self.write_slots(self.first, column, arrays)

    def scatter(self, ends: Ints, skip: int, arrays: Pair) -> None:
        """Writes the rows and heads of K, or V, as lines of a flat pool."""
        assert self.arrays is not None
        _, heads, length, _ = arrays[0].shape
        if self.lines is None:
            lines = np.arange(self.first * heads, (self.first + self.rows) * heads)
            self.lines = (lines * self.room).reshape(self.rows, heads, 1)
        columns = (ends[:, None, None] + np.arange(skip, skip + length)) % self.room
        index = mx.array((self.lines + columns).ravel().astype(np.uint32))
        keys, values = self.arrays
        self.arrays = (
            write_lines(keys, index, arrays[0]),
            write_lines(values, index, arrays[1]),
        )

    def read(self, begin: int, end: int) -> Pair:
        assert self.arrays is not None
        keys, values = self.arrays
        rows = slice(self.first, self.first + self.rows)
        return keys[rows, :, begin:end], values[rows, :, begin:end]

    def join(self, pieces: Sequence[Pair]) -> Pair:
        return join(pieces)

    def copy(self, arrays: Pair) -> Pair:
        copied = make_compact(arrays)
        mx.eval(copied)  # type: ignore[no-untyped-call]
        return copied

    def move(self, source: int, target: int, begin: int, end: int) -> None:
        self.write_slots(target, begin, self.copy(self.read_slot(source, begin, end)))

    def clone(self) -> RowPool:
        """Returns a pool with the same arrays; the pool that writes first gets a copy."""
        copied = RowPool(self.rows, self.window, self.step, self.fill)
        if self.arrays is not None:
            copied.arrays, copied.form = (
                (*(array[...] for array in self.arrays),),
                self.form,
            )
            copied.slots, copied.room, copied.first = self.slots, self.room, self.first
            copied.starts = self.starts
        return copied


def write_lines(pool: mx.array, index: mx.array, tokens: mx.array) -> mx.array:
    """Returns the pool after tokens are written to some of its lines.

    A line is one head of one column of one slot.

    Args:
        pool: [slots, heads, room, dim].
        index: for each token, the number of its line, from 0 to slots * heads * room - 1.
        tokens: [rows, heads, length, dim].
    """
    if not pool.size:  # see `write_wide`
        return pool
    if can_widen(pool) and pool.dtype == tokens.dtype:
        written = put_lines(pool.view(mx.uint64), index, tokens.view(mx.uint64))
        return written.view(pool.dtype)
    return put_lines(pool, index, tokens)


def put_lines(pool: mx.array, index: mx.array, tokens: mx.array) -> mx.array:
    flat = pool.reshape(-1, pool.shape[3])
    flat[index] = tokens.reshape(-1, pool.shape[3])
    return flat.reshape(pool.shape)
