"""The full cache on torch: one buffer, written in place, returned as views."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.memory import Linear, Part, compute_capacity
from lockstep.impl.torch.masks import BOOLEAN, make_band
from lockstep.impl.torch.memory import (
    Buffer,
    Pair,
    clone,
    copy_both,
    get_bytes,
    has_gradient,
)


class LinearMemory(Linear):
    """K and V of position p at index p of two buffers [1, heads, capacity, dim].

    Args:
        step: see `impl.shared.memory.compute_capacity`.
        fill: initial content of the memory; None for uninitialized memory.
    """

    buffers: tuple[Buffer, Buffer] | None

    def __init__(self, step: int, fill: float | None) -> None:
        super().__init__(step)
        self.fill = fill

    def reserve(self, like: Pair, used: int, needed: int) -> None:
        """Makes room for `needed` positions; the first `used` keep their content."""
        self.accept(like)
        if needed <= self.capacity:
            return
        old = self.read(0, used) if used else None
        self.capacity = compute_capacity(self.capacity, needed, self.step)
        self.buffers = self.allocate(like[0]), self.allocate(like[1])
        if old is not None:
            self.write(0, used, old)

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        ((_, begin, end),) = parts
        self.reserve(columns, 0, end - begin + 1)
        keys, values = columns
        self.write(0, end - begin, (keys[:, :, begin:end], values[:, :, begin:end]))

    def allocate(self, like: torch.Tensor) -> Buffer:
        return Buffer.allocate(like, self.capacity, self.fill)

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        assert self.buffers is not None
        keys, values = self.buffers
        if end - begin == 1 and not has_gradient(self.buffers, arrays):
            copy_both((keys.take_token(begin), values.take_token(begin)), arrays)
        else:
            keys.take(begin, end).copy_(arrays[0])
            values.take(begin, end).copy_(arrays[1])

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        keys, values = self.buffers
        return keys.take(begin, end), values.take(begin, end)

    def copy(self, begin: int, end: int) -> Pair:
        return clone(self.read(begin, end))

    def join(self, left: Pair, right: Pair) -> Pair:
        return (
            torch.cat((left[0], right[0]), dim=2),
            torch.cat((left[1], right[1]), dim=2),
        )

    def get_bytes(self, arrays: Pair) -> int:
        return get_bytes(arrays)

    def list_arrays(self) -> list[torch.Tensor]:
        return [buffer.tensor for buffer in self.buffers or ()]


class KVCache(KVCacheBase):
    """Full attention over one sequence, batch 1.

    `update`, `view` and `state` return views of the buffer: they are valid until the next
    update, trim, restore or free of this cache.

    Args:
        step, fill: see `LinearMemory`.
        mask: has the dtype and device of masks. bool for True where a row sees a column,
            a floating type for 0 there and -inf elsewhere.
    """

    memory: LinearMemory

    def __init__(
        self, step: int = 256, fill: float | None = None, mask: torch.Tensor = BOOLEAN
    ) -> None:
        super().__init__()
        self.memory = LinearMemory(step, fill)
        self.mask = mask

    def make_mask(self, length: int, rows: int) -> torch.Tensor | None:
        """Returns the mask of the next update; None if every row sees every column.

        Args:
            length: number of tokens of the update.
            rows: number of rows of the mask; those beyond `length` are padding.

        Returns:
            [rows, offset + length].
        """
        if length == rows == 1:
            return None
        return make_band(length, rows, self.offset, None, self.mask)

    def cut(self, arrays: Pair, at: int) -> tuple[Pair, Pair]:
        keys, values = arrays
        left = clone((keys[:, :, :at], values[:, :, :at]))
        return left, clone((keys[:, :, at:], values[:, :, at:]))

    def clone(self) -> KVCache:
        """Returns an independent cache with the same tokens in its own memory."""
        other = KVCache(self.memory.step, self.memory.fill, self.mask)
        if self.offset:
            other.write(0, self.memory.read(0, self.offset))
            other.offset = self.offset
        return other
