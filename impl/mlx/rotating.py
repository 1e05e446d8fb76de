"""The sliding window on MLX: a ring, with a twin where several tokens go around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import mlx.core as mx

from lockstep.impl.mlx.masks import make_band
from lockstep.impl.mlx.memory import Pair, PairMemory, join_columns
from lockstep.impl.mlx.wide import write_wide
from lockstep.impl.shared.memory import Part, Ring
from lockstep.impl.shared.rotating import RotatingCacheBase


class RingMemory(PairMemory, Ring):
    """A ring in two buffers [1, heads, room, dim].

    Args:
        window, step, twin: see `Ring`.
        fill: as in `PairMemory`.
    """

    def __init__(self, window: int, step: int, fill: float, twin: bool) -> None:
        super().__init__(window, step, twin)
        self.fill = fill

    def lay_out(self, like: Pair, begin: int, end: int, room: int) -> Pair:
        old, span = self.buffers or like, (0, 0)
        if end > begin:
            column = self.get_column(begin)
            span = column, column + end - begin
        if span[1] > self.room:  # around the ring
            old, span = self.read(begin, end), (0, end - begin)
        return self.extend(old[0], span, room), self.extend(old[1], span, room)

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        self.accept(columns)
        (position, first, _), room = parts[0], columns[0].shape[2]
        used = sum(end - begin for _, begin, end in parts)
        is_full = used == self.window == room
        if is_full or first + used < room <= 2 * used:  # one block, copied faster
            self.base, self.capacity, self.room = position - first, room, room
            self.buffers = mx.array(columns[0]), mx.array(columns[1])
            return
        tokens = join_columns(columns[0], parts), join_columns(columns[1], parts)
        self.reserve(tokens, position, position, min(used + 1, self.window))
        self.write(position, position + used, tokens)

    def share(self, other: Self) -> None:
        super().share(other)
        self.base, self.room = other.base, other.room

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        """In MLX one token is fastest with one slice of up to two steps, and several with
        a slice for each part. A view of the buffer with both halves in an axis was slower
        for either."""
        assert self.buffers is not None
        keys, values = self.buffers
        if end - begin == 1:
            column = self.get_column(begin)
            keys[:, :, column :: self.capacity] = arrays[0]
            if values.size:  # see `write_wide`
                values[:, :, column :: self.capacity] = arrays[1]
            return
        targets = self.find_targets(begin, end)

        def write(buffer: mx.array, tokens: mx.array) -> mx.array:
            for first, column, stop in targets:
                part = tokens[:, :, first - begin : first - begin + stop - column]
                buffer[:, :, column:stop] = part
            return buffer

        self.buffers = (
            write_wide(keys, arrays[0], write),
            write_wide(values, arrays[1], write),
        )

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        keys, values = self.buffers
        column = self.get_column(begin)
        stop = column + end - begin
        if stop <= self.room:
            return keys[:, :, column:stop], values[:, :, column:stop]
        parts = self.find_columns(begin, end)
        return join_columns(keys, parts), join_columns(values, parts)

    def read_all(self) -> Pair:
        """Returns other objects than the buffers: these are written in place."""
        assert self.buffers is not None
        return self.buffers[0][...], self.buffers[1][...]


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, itself included. `update`, `view` and `state`
    return values, as in `impl.mlx.kv`.

    Args:
        window: number of tokens.
        step, fill, mask: as in `impl.mlx.kv`.
        twin: False for less memory, at most half: then several tokens that go around the
            ring copy the window.
    """

    memory: RingMemory

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float = 0.0,
        mask: mx.Dtype = mx.bool_,
        twin: bool = True,
    ) -> None:
        super().__init__(window)
        self.memory = RingMemory(window, step, fill, twin)
        self.mask = mask

    def make_mask(self, length: int, rows: int) -> mx.array | Literal["causal"] | None:
        """Returns the mask of the next update; None if every row sees every column.

        Args:
            length: number of tokens of the update.
            rows: number of rows of the mask; those beyond `length` are padding.

        Returns:
            [rows, columns]; the columns are up to window - 1 old tokens and the new ones.
            "causal" as long as these fit the window.
        """
        if length == rows == 1:
            return None
        before = self.count_before(length)
        if length == rows and self.mask == mx.bool_ and before + length <= self.window:
            return "causal"
        return make_band(length, rows, before, self.window, self.mask)

    def clone(self) -> RotatingCache:
        """Returns an independent cache with the same window.

        The memory is shared until one of the two writes.
        """
        memory = self.memory
        options = memory.step, memory.fill, self.mask, memory.twin
        other = RotatingCache(self.window, *options)
        other.memory.share(memory)
        other.offset = self.offset
        return other
