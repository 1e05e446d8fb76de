"""The sliding window on MLX: a ring stored twice, so that no window wraps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from lockstep.impl.mlx.masks import make_band
from lockstep.impl.mlx.memory import Pair, PairMemory
from lockstep.impl.mlx.wide import join_wide, write_wide
from lockstep.impl.shared.memory import Ring, compute_capacity
from lockstep.impl.shared.rotating import RotatingCacheBase


class RingMemory(PairMemory, Ring):
    """K and V of position p in slot p mod capacity, in two buffers [1, heads, 2 *
    capacity, dim]: the ring, and behind it its twin.

    A write goes to both. Any `capacity` consecutive positions are then one slice in
    order: nothing is rolled or concatenated, and a step moves only its own tokens. The
    price is the memory of the twin.

    Args:
        window: beyond this capacity the ring grows only as far as needed.
        step, fill: as in `PairMemory`.
    """

    def __init__(self, window: int, step: int, fill: float) -> None:
        super().__init__(step, fill)
        self.window = window

    def reserve(self, like: Pair, begin: int, end: int, needed: int) -> None:
        """Makes room for `needed` consecutive positions; [begin, end) are kept."""
        self.accept(like)
        if needed <= self.capacity:
            return
        self.secure_all()
        old = self.read(begin, end) if end > begin else None
        self.capacity = compute_capacity(self.capacity, needed, self.step, self.window)
        self.buffers = self.allocate(like[0]), self.allocate(like[1])
        if old is not None:
            self.write(begin, end, old)

    def adopt(self, parts: Sequence[Pair], used: int) -> None:
        self.accept(parts[0])
        keys, values = zip(*parts, strict=True)
        self.capacity = sum(array.shape[2] for array in keys)
        self.buffers = join_wide(keys * 2), join_wide(values * 2)

    def allocate(self, like: mx.array) -> mx.array:
        batch, heads, _, dim = like.shape
        return mx.full((batch, heads, 2 * self.capacity, dim), self.fill, like.dtype)

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        """Writes at most `capacity` positions to the ring and its twin.

        In MLX one token is fastest with one slice of two steps, and several with a slice
        for each half. A view of the buffer with both halves in an axis was slower for
        either.
        """
        assert self.buffers is not None
        slot, length = begin % self.capacity, end - begin
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
        twin = slot + self.capacity
        fits = min(length, self.capacity - slot)
        buffer[:, :, slot : slot + length] = array
        buffer[:, :, twin : twin + fits] = array[:, :, :fits]
        if fits < length:
            buffer[:, :, : length - fits] = array[:, :, fits:]

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        slot = begin % self.capacity
        keys, values = self.buffers
        stop = slot + end - begin
        return keys[:, :, slot:stop], values[:, :, slot:stop]


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
