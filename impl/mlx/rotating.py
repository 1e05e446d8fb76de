"""The sliding window on MLX: a ring with a twin, so that no window wraps."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal, Self

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.masks import make_band
from lockstep.impl.mlx.memory import Pair, PairMemory
from lockstep.impl.mlx.wide import write_wide
from lockstep.impl.shared.memory import Part, Ring, compute_capacity
from lockstep.impl.shared.rotating import RotatingCacheBase

LINE = 64
"""Columns of a row that are copied at once, if this divides their number."""


class RingMemory(PairMemory, Ring):
    """K and V of position p in slot (p - base) mod capacity, in two buffers [1, heads,
    room, dim].

    At first the room is the capacity. When a ring whose first tokens have been evicted is
    full, it is laid out anew, with a twin behind it, and from then on a write goes to
    both. Any `capacity` consecutive positions are one slice in order: nothing is rolled
    or concatenated, and a step moves only its own tokens. The price is the memory of the
    twin.

    What is laid out is not written to the twin. It begins in slot 0: a slice that begins
    there or later reaches the twins only of positions that were written since.

    Args:
        window: beyond this capacity the ring grows only as far as needed.
        step, fill: as in `PairMemory`.
    """

    def __init__(self, window: int, step: int, fill: float) -> None:
        super().__init__(step, fill)
        self.window = window
        self.base = self.room = 0

    def reserve(self, like: Pair, begin: int, end: int, needed: int) -> None:
        """Makes room for `needed` consecutive positions; [begin, end) are kept."""
        self.accept(like)
        if needed <= self.capacity and self.get_slot(begin) + needed <= self.room:
            return
        self.secure_all()
        slot = self.get_slot(begin) if end > begin else 0
        kept, (keys, values) = (slot, slot + end - begin), self.buffers or like
        self.capacity = compute_capacity(self.capacity, needed, self.step, self.window)
        self.base, self.room = begin, (2 if begin else 1) * self.capacity
        self.buffers = (
            self.extend(keys, kept, self.room),
            self.extend(values, kept, self.room),
        )

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        self.accept(columns)
        used = sum(end - begin for _, begin, end in parts)
        position, first, _ = parts[0]
        line = gcd(columns[0].shape[2], LINE)
        before = first % line  # columns in the same line
        lines = -(-(before + used + 1) // line)
        self.base, self.capacity = position - before, lines * line
        self.room = self.capacity
        keys, values = (unroll(ring, first // line, lines, line) for ring in columns)
        for buffer in (keys, values):
            if buffer.size:  # see `write_wide`
                buffer[:, :, :before] = self.fill
                buffer[:, :, before + used :] = self.fill
        self.buffers = keys, values

    def get_slot(self, position: int) -> int:
        return (position - self.base) % self.capacity

    def share(self, other: Self) -> None:
        super().share(other)
        self.base, self.room = other.base, other.room

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        """Writes at most `capacity` positions to the ring, and to its twin if it has one.

        In MLX one token is fastest with one slice of two steps, and several with a slice
        for each half. A view of the buffer with both halves in an axis was slower for
        either.
        """
        assert self.buffers is not None
        slot, length = self.get_slot(begin), end - begin
        keys, values = self.buffers
        if length == 1:
            keys[:, :, slot :: self.capacity] = arrays[0]
            if values.size:  # see `write_wide`
                values[:, :, slot :: self.capacity] = arrays[1]
            return

        def write(buffer: mx.array, tokens: mx.array) -> mx.array:
            self.write_chunk(buffer, slot, length, tokens)
            return buffer

        self.buffers = (
            write_wide(keys, arrays[0], write),
            write_wide(values, arrays[1], write),
        )

    def write_chunk(
        self, buffer: mx.array, slot: int, length: int, array: mx.array
    ) -> None:
        """Writes a chunk; at the ring's end the first slice continues into the twin."""
        buffer[:, :, slot : slot + length] = array
        if self.room == self.capacity:
            return
        twin = slot + self.capacity
        fits = min(length, self.capacity - slot)
        buffer[:, :, twin : twin + fits] = array[:, :, :fits]
        if fits < length:
            buffer[:, :, : length - fits] = array[:, :, fits:]

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        slot = self.get_slot(begin)
        keys, values = self.buffers
        stop = slot + end - begin
        return keys[:, :, slot:stop], values[:, :, slot:stop]


def unroll(ring: mx.array, begin: int, count: int, line: int) -> mx.array:
    """Copies a ring, from one of its lines on and around it.

    A gather copies each line as one block; slices are copied number by number.

    Args:
        ring: [1, heads, room, dim].
        begin, count: first line, and number of lines.
        line: number of columns of a line; divides the room.

    Returns:
        [1, heads, count * line, dim].
    """
    _, heads, room, dim = ring.shape
    shape = (1, heads, count * line, dim)
    if not ring.size:
        return mx.zeros(shape, ring.dtype)
    lines = room // line
    index = np.arange(begin, begin + count) % lines + lines * np.arange(heads)[:, None]
    flat = ring.reshape(heads * lines, line * dim)
    return flat[mx.array(index.astype(np.uint32))].reshape(shape)


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, itself included. `update`, `view` and `state`
    return values, as in `impl.mlx.kv`.

    Args:
        window: number of tokens.
        step, fill, mask: as in `impl.mlx.kv`.
    """

    memory: RingMemory

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float = 0.0,
        mask: mx.Dtype = mx.bool_,
    ) -> None:
        super().__init__(window)
        self.memory = RingMemory(window, step, fill)
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
        other = RotatingCache(self.window, memory.step, memory.fill, self.mask)
        other.memory.share(memory)
        other.offset = self.offset
        return other
