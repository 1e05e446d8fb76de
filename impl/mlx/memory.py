"""The code that all memories of K and V on MLX share.

An MLX array is a value and is evaluated lazily. Assigning to a slice of a buffer makes a
new value. When this value is evaluated, it is written in place if nothing else refers to
the old value, and otherwise into a copy of the whole buffer. This has three consequences:

* Returned arrays never change.
* If the arrays of the previous step have been dropped, a step moves its own tokens and no
  others.
* The memory must not keep a reference to a buffer that is about to be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.masks import CPU
from lockstep.impl.mlx.wide import join_wide, read_wide, write_wide
from lockstep.impl.shared.linear import Plan, Run
from lockstep.impl.shared.memory import TokenMemory as MemoryBase

Pair = tuple[mx.array, mx.array]


class TokenMemory(MemoryBase):
    """K and V of one sequence in two buffers, which are written through slices."""

    buffers: Pair | None

    def carry_out(self, plan: Plan, arrays: Pair) -> Pair:
        columns, copied, written, returned = plan
        self.columns, count = columns, arrays[0].shape[2]
        if count == columns.room and written == ((0, 0, count),):
            self.buffers = arrays[0][...], arrays[1][...]
            return self.view(returned)
        if copied is not None:
            old = self.buffers or arrays
            self.buffers = (
                self.extend(old[0], copied, columns.room),
                self.extend(old[1], copied, columns.room),
            )
        if count > 1 or not written:
            self.write(written, arrays)
            return self.view(returned)
        assert self.buffers is not None
        keys, values = self.buffers
        _, column, end = written[0]
        target = slice(column, end)
        if len(written) > 1:  # one slice with a step is faster than two
            target = slice(column, None, columns.capacity)
        keys[:, :, target] = arrays[0]
        if values.size:  # see `write_wide`
            values[:, :, target] = arrays[1]
        return self.view(returned)

    def write(self, runs: Sequence[Run], arrays: Pair) -> None:
        """Writes tokens to columns; the tokens are numbered from 0."""

        def write(buffer: mx.array, tokens: mx.array) -> mx.array:
            for token, column, end in runs:
                buffer[:, :, column:end] = tokens[:, :, token : token + end - column]
            return buffer

        assert self.buffers is not None
        keys, values = self.buffers
        self.buffers = (
            write_wide(keys, arrays[0], write),
            write_wide(values, arrays[1], write),
        )

    def extend(self, old: mx.array, copied: Sequence[Run], room: int) -> mx.array:
        """Returns a buffer of `room` columns that begins with columns of an old
        buffer."""
        batch, heads, _, dim = old.shape
        count = sum(end - begin for _, begin, end in copied)
        fresh = mx.full((batch, heads, room - count, dim), self.fill, old.dtype)
        if not count:
            return fresh
        if len(copied) > 1:
            return join_wide(join_runs(old, copied), (0, count), fresh)
        ((_, begin, end),) = copied
        return join_wide(old, (begin, end), fresh)

    def view(self, runs: Sequence[Run]) -> Pair:
        """Returns new array objects for the columns, because the buffers are written in
        place."""
        assert self.buffers is not None
        keys, values = self.buffers
        if len(runs) > 1:
            return join_runs(keys, runs), join_runs(values, runs)
        _, begin, end = runs[0]
        if end - begin == self.columns.room:
            return keys[...], values[...]
        return keys[:, :, begin:end], values[:, :, begin:end]

    def copy(self, begin: int, end: int) -> Pair:
        """Returns the whole buffers without a copy; the first write to them makes the
        copy."""
        runs = self.columns.find(begin, end)
        if end - begin == self.columns.room and len(runs) == 1:
            return self.view(runs)
        return super().copy(begin, end)

    def copy_runs(self, arrays: Pair, runs: Sequence[Run]) -> Pair:
        """Returns copies of columns that keep no buffer alive; evaluates them
        immediately.

        Until copies are evaluated, they refer to the buffers, and the next write would
        copy the whole buffers.
        """
        copied = copy_columns(arrays[0], runs), copy_columns(arrays[1], runs)
        mx.eval(copied)  # type: ignore[no-untyped-call]
        return copied

    def join(self, pieces: Sequence[Pair]) -> Pair:
        return join(pieces)

    def adopt(self, arrays: Pair, runs: Sequence[Run]) -> None:
        """Copies the columns of the row; as one block if they fit, which is faster."""
        (first, column, _), room = runs[0], arrays[0].shape[2]
        count = sum(end - begin for _, begin, end in runs)
        columns = self.columns.take_block(first, column, count, room)
        if columns is None:
            super().adopt(arrays, runs)
            return
        self.columns = columns
        self.buffers = mx.array(arrays[0]), mx.array(arrays[1])

    def share(self, source: Self, first: int, end: int) -> None:
        """Shares the buffers of `source`; the memory that writes first gets a copy.

        An assignment to a slice changes the content of the Python object, so each memory
        needs separate objects with the same content.
        """
        assert source.buffers is not None
        self.buffers = source.buffers[0][...], source.buffers[1][...]
        self.columns = source.columns

    def make_mask(
        self, length: int, rows: int, old: int, window: int | None, like: mx.Dtype
    ) -> mx.array | str:
        is_causal = window is None or old + length <= window
        if is_causal and length == rows and like == mx.bool_:
            return "causal"
        return make_band(length, rows, old, window, like)


def join(pieces: Sequence[Pair]) -> Pair:
    """Concatenates K and V of all pieces."""
    keys, values = zip(*pieces, strict=True)
    return mx.concatenate(keys, axis=2), mx.concatenate(values, axis=2)


def join_runs(buffer: mx.array, runs: Sequence[Run]) -> mx.array:
    """Concatenates the columns of several runs."""
    return mx.concatenate([buffer[:, :, begin:end] for _, begin, end in runs], axis=2)


def copy_columns(buffer: mx.array, runs: Sequence[Run]) -> mx.array:
    """Returns an array with a copy of some columns.

    Until the array is evaluated, it keeps the buffer alive. Afterwards, it does not; see
    `make_compact`.
    """
    count = sum(end - begin for _, begin, end in runs)
    return read_wide(buffer, count, lambda wide: mx.contiguous(join_runs(wide, runs)))


def make_compact(arrays: Pair) -> Pair:
    """Returns the same content in arrays that do not keep their source alive.

    `mx.contiguous` does not copy if the copy would save at most 16 KiB.
    """
    return mx.contiguous(arrays[0]), mx.contiguous(arrays[1])


def make_band(
    length: int, rows: int, old: int, window: int | None, dtype: mx.Dtype
) -> mx.array:
    """Returns the mask of consecutive tokens.

    Row i, at column old + i, sees itself and the columns on its left; with a window, it
    sees `window` columns in all. Each row is the previous row, shifted by one column.
    Therefore all rows are slices of one line, and only the line is computed.

    On the CPU, the result is a view of the line, which has `rows` + `width` numbers;
    attention is as fast as with a contiguous mask. On other devices, or with padding
    rows, the slices are copied, because kernels may require contiguous rows.

    Args:
        length: number of new tokens.
        rows: number of rows; rows from number `length` on see no column.
        old: number of old tokens.
        window: None for no window.
        dtype: a bool_ mask is True where a row sees a column; a floating-point mask is 0
            there, and -inf elsewhere.

    Returns:
        [rows, old + length].
    """
    width = old + length
    seen = width if window is None else min(window, width)
    line = make_line(width + length - 1, width - seen, width, dtype)
    if rows == length and mx.default_device() == CPU:
        return mx.as_strided(line, (length, width), (-1, 1), length - 1)
    # Padding rows are slices after the line.
    never = mx.full((width,), False if dtype == mx.bool_ else -mx.inf, dtype)
    padded = mx.concatenate([line, never])
    stretches = mx.as_strided(padded, (length + width, width), (1, 1))
    begins = [*range(length - 1, -1, -1), *[length + width - 1] * (rows - length)]
    return mx.take(stretches, mx.array(begins), axis=0)


def make_line(size: int, begin: int, end: int, dtype: mx.Dtype) -> mx.array:
    """Returns a mask line [size] in which only [begin, end) is visible.

    numpy makes the line, because evaluating several MLX operations takes longer for few
    numbers.
    """
    if dtype == mx.bool_:
        line = np.zeros(size, np.bool_)
        line[begin:end] = True
        return mx.array(line)
    numbers = np.full(size, -np.inf, np.float32)
    numbers[begin:end] = 0
    return mx.array(numbers, dtype)
