"""The sliding window on torch: a ring stored twice, so that no window wraps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.memory import Part, Ring, compute_capacity
from lockstep.impl.shared.rotating import RotatingCacheBase
from lockstep.impl.torch.buffer import (
    Pair,
    TwinBuffer,
    clone,
    copy_both,
    get_bytes,
    has_gradient,
)
from lockstep.impl.torch.masks import BOOLEAN, make_band


class RingMemory(Ring):
    """K and V of position p in slot p mod capacity, in two buffers [1, heads, 2 *
    capacity, dim]: the ring, and behind it its twin.

    A write goes to both in one operation. Any `capacity` consecutive positions are then
    one slice in order: nothing is rolled or concatenated, and a step moves only its own
    tokens. The price is the memory of the twin.

    Args:
        window: beyond this capacity the ring grows only as far as needed.
        step, fill: as in `impl.torch.kv.LinearMemory`.
    """

    def __init__(self, window: int, step: int, fill: float | None) -> None:
        super().__init__()
        self.window, self.step, self.fill = window, step, fill
        self.buffers: tuple[TwinBuffer, TwinBuffer] | None = None
        self.capacity = 0

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

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        used = sum(end - begin for _, begin, end in parts)
        self.reserve(columns, 0, 0, min(used + 1, self.window))
        keys, values = columns
        for position, begin, end in parts:
            tokens = keys[:, :, begin:end], values[:, :, begin:end]
            self.write(position, position + end - begin, tokens)

    def allocate(self, like: torch.Tensor) -> TwinBuffer:
        return TwinBuffer.allocate(like, 2 * self.capacity, self.fill)

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        """Writes at most `capacity` positions to the ring and its twin."""
        assert self.buffers is not None
        slot = begin % self.capacity
        keys, values = self.buffers
        if end - begin == 1 and not has_gradient(self.buffers, arrays):
            copy_both((keys.take_token(slot), values.take_token(slot)), arrays)
        else:
            self.write_chunk(keys, slot, arrays[0])
            self.write_chunk(values, slot, arrays[1])

    def write_chunk(self, buffer: TwinBuffer, slot: int, array: torch.Tensor) -> None:
        """Writes a chunk, in two pieces if the ring wraps."""
        length = array.shape[2]
        fits = min(length, self.capacity - slot)
        both = array.unsqueeze(2)  # [1, heads, 1, tokens, dim]
        buffer.take_both(slot, slot + fits).copy_(both[:, :, :, :fits])
        if fits < length:
            buffer.take_both(0, length - fits).copy_(both[:, :, :, fits:])

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        slot = begin % self.capacity
        keys, values = self.buffers
        stop = slot + end - begin
        return keys.take(slot, stop), values.take(slot, stop)

    def copy(self, begin: int, end: int) -> Pair:
        return clone(self.read(begin, end))

    def get_bytes(self, arrays: Pair) -> int:
        return get_bytes(arrays)

    def list_arrays(self) -> list[torch.Tensor]:
        return [buffer.tensor for buffer in self.buffers or ()]

    def clear(self) -> None:
        self.buffers, self.capacity, self.form = None, 0, None


class RotatingCache(RotatingCacheBase):
    """Sliding-window attention over one sequence, batch 1.

    A query sees the last `window` tokens, itself included. `update`, `view` and `state`
    return views of the ring: they are valid until the next update, trim, restore or free
    of this cache.

    Args:
        window: number of tokens.
        step, fill, mask: as in `impl.torch.kv`.
    """

    memory: RingMemory

    def __init__(
        self,
        window: int,
        step: int = 256,
        fill: float | None = None,
        mask: torch.Tensor = BOOLEAN,
    ) -> None:
        super().__init__(window)
        self.memory = RingMemory(window, step, fill)
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
        other = RotatingCache(self.window, self.memory.step, self.memory.fill, self.mask)
        if self.offset:
            first = self.get_first(self.offset)
            other.write(first, self.memory.read(first, self.offset))
            other.offset = self.offset
        return other
