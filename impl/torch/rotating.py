"""The sliding window on torch: a ring, with a twin where several tokens go around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.memory import Part, Ring
from lockstep.impl.shared.rotating import RotatingCacheBase
from lockstep.impl.torch.masks import BOOLEAN, make_band
from lockstep.impl.torch.memory import (
    Buffer,
    Pair,
    copy_both,
    get_bytes,
    has_gradient,
)


class RingMemory(Ring):
    """A ring in two buffers [1, heads, room, dim].

    Args:
        window, step, twin: see `Ring`.
        fill: as in `impl.torch.kv.LinearMemory`.
    """

    buffers: tuple[Buffer, Buffer] | None

    def __init__(self, window: int, step: int, fill: float | None, twin: bool) -> None:
        super().__init__(window, step, twin)
        self.fill = fill

    def lay_out(
        self, like: Pair, begin: int, end: int, room: int
    ) -> tuple[Buffer, Buffer]:
        keys, values = (Buffer.allocate(array, room, self.fill) for array in like)
        if end > begin:
            for buffer, array in zip((keys, values), self.read(begin, end), strict=True):
                buffer.take(0, end - begin).copy_(array)
        return keys, values

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        first, used = parts[0][0], sum(end - begin for _, begin, end in parts)
        self.reserve(columns, first, first, min(used + 1, self.window))
        keys, values = columns
        for position, begin, end in parts:
            tokens = keys[:, :, begin:end], values[:, :, begin:end]
            self.write(position, position + end - begin, tokens)

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        assert self.buffers is not None
        keys, values = self.buffers
        if end - begin == 1 and not has_gradient(self.buffers, arrays):
            for column in range(self.get_column(begin), self.room, self.capacity):
                copy_both((keys.take_token(column), values.take_token(column)), arrays)
            return
        for first, column, stop in self.find_targets(begin, end):
            part = slice(first - begin, first - begin + stop - column)
            keys.take(column, stop).copy_(arrays[0][:, :, part])
            values.take(column, stop).copy_(arrays[1][:, :, part])

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        keys, values = self.buffers
        column = self.get_column(begin)
        stop = column + end - begin
        if stop <= self.room:
            return keys.take(column, stop), values.take(column, stop)
        parts = self.find_columns(begin, end)
        return join_columns(keys, parts), join_columns(values, parts)

    def read_all(self) -> Pair:
        assert self.buffers is not None
        return self.buffers[0].tensor, self.buffers[1].tensor

    def copy(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        parts = self.find_columns(begin, end)
        keys, values = self.buffers
        return join_columns(keys, parts), join_columns(values, parts)

    def get_bytes(self, arrays: Pair) -> int:
        return get_bytes(arrays)

    def list_arrays(self) -> list[torch.Tensor]:
        return [buffer.tensor for buffer in self.buffers or ()]


def join_columns(buffer: Buffer, parts: Sequence[Part]) -> torch.Tensor:
    """Returns a copy of columns, one part behind the other."""
    return torch.cat([buffer.take(begin, end) for _, begin, end in parts], dim=2)


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, itself included. `update`, `view` and `state`
    return views of the ring if they can: valid until the next update, trim, restore or
    free of this cache.

    Args:
        window: number of tokens.
        step, fill, mask: as in `impl.torch.kv`.
        twin: False for less memory, at most half: then several tokens that go around the
            ring copy the window.
    """

    memory: RingMemory

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float | None = None,
        mask: torch.Tensor = BOOLEAN,
        twin: bool = True,
    ) -> None:
        super().__init__(window)
        self.memory = RingMemory(window, step, fill, twin)
        self.mask = mask

    def make_mask(self, length: int, rows: int) -> torch.Tensor | None:
        """Returns the mask of the next update; None if every row sees every column.

        Args:
            length: number of tokens of the update.
            rows: number of rows of the mask; those beyond `length` are padding.

        Returns:
            [rows, columns]; the columns are up to window - 1 old tokens and the new ones.
        """
        if length == rows == 1:
            return None
        before = self.count_before(length)
        return make_band(length, rows, before, self.window, self.mask)

    def clone(self) -> RotatingCache:
        """Returns an independent cache with the same window in its own memory."""
        memory = self.memory
        options = memory.step, memory.fill, self.mask, memory.twin
        other = RotatingCache(self.window, *options)
        if self.offset:
            first = self.get_first(self.offset)
            other.write(first, memory.read(first, self.offset))
            other.offset = self.offset
        return other
