"""The full cache on MLX: one buffer, written through slices, returned as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from lockstep.impl.mlx.masks import make_band
from lockstep.impl.mlx.memory import Pair, PairMemory, copy_columns
from lockstep.impl.mlx.wide import Span, write_wide
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.memory import Linear, Part, compute_capacity


class LinearMemory(PairMemory, Linear):
    """K and V of position p at index p of two buffers [1, heads, capacity, dim].

    Args:
        step: see `impl.shared.memory.compute_capacity`.
        fill: see `PairMemory`.
    """

    def __init__(self, step: int, fill: float) -> None:
        super().__init__(step)
        self.fill = fill

    def reserve(self, like: Pair, used: int, needed: int) -> None:
        """Makes room for `needed` positions; the first `used` keep their content."""
        self.accept(like)
        if needed <= self.capacity:
            return
        self.capacity = compute_capacity(self.capacity, needed, self.step)
        self.buffers = self.lay_out(self.buffers or like, (0, used))

    def adopt(self, columns: Pair, parts: Sequence[Part]) -> None:
        self.accept(columns)
        ((_, begin, end),) = parts
        room, used = columns[0].shape[2], end - begin
        if begin == 0 and used < room <= 2 * used:  # one block, which is copied faster
            self.capacity = room
            self.buffers = mx.array(columns[0]), mx.array(columns[1])
        else:
            self.capacity = compute_capacity(0, used + 1, self.step)
            self.buffers = self.lay_out(columns, (begin, end))

    def lay_out(self, old: Pair, span: Span) -> Pair:
        """Returns buffers that begin with a span of old ones."""
        keys, values = (self.extend(array, span, self.capacity) for array in old)
        return keys, values

    def copy(self, begin: int, end: int) -> Pair:
        """Returns whole buffers as they are: the first to write copies them."""
        if end - begin < self.capacity:
            return super().copy(begin, end)
        assert self.buffers is not None
        return self.buffers[0][...], self.buffers[1][...]

    def write(self, begin: int, end: int, arrays: Pair) -> None:
        assert self.buffers is not None
        keys, values = self.buffers
        length = end - begin
        is_whole = arrays[0].shape[2] == length
        if is_whole and length == self.capacity:
            self.buffers = arrays[0][...], arrays[1][...]
            return
        if is_whole and length == 1:
            keys[:, :, begin:end] = arrays[0]
            if values.size:  # see `write_wide`
                values[:, :, begin:end] = arrays[1]
            return

        def write(buffer: mx.array, tokens: mx.array) -> mx.array:
            buffer[:, :, begin:end] = tokens[:, :, :length]
            return buffer

        self.buffers = (
            write_wide(keys, arrays[0], write),
            write_wide(values, arrays[1], write),
        )

    def select(self, arrays: Pair, count: int) -> Pair:
        """Leaves the slice to `write`: MLX copies a slice that it is to view."""
        return arrays

    def read(self, begin: int, end: int) -> Pair:
        assert self.buffers is not None
        keys, values = self.buffers
        return keys[:, :, begin:end], values[:, :, begin:end]


class KVCache(KVCacheBase):
    """Full attention over one sequence, batch 1.

    `update`, `view` and `state` return values: they stay valid. Drop them before the next
    update is evaluated, or it copies the whole buffer.

    Args:
        step, fill: see `LinearMemory`.
        mask: dtype of masks. bool_ for True where a row sees a column (or "causal" if
            that is equivalent), a floating type for 0 there and -inf elsewhere.
    """

    memory: LinearMemory

    def __init__(
        self, step: int = 256, fill: float = 0.0, mask: mx.Dtype = mx.bool_
    ) -> None:
        super().__init__()
        self.memory = LinearMemory(step, fill)
        self.mask = mask

    def make_mask(self, length: int, rows: int) -> mx.array | Literal["causal"] | None:
        """Returns the mask of the next update; None if every row sees every column.

        Args:
            length: number of tokens of the update.
            rows: number of rows of the mask; those beyond `length` are padding.

        Returns:
            [rows, offset + length], or "causal".
        """
        if length == rows == 1:
            return None
        if length == rows and self.mask == mx.bool_:
            return "causal"
        return make_band(length, rows, self.offset, None, self.mask)

    def cut(self, arrays: Pair, at: int) -> tuple[Pair, Pair]:
        (keys, values), end = arrays, arrays[0].shape[2]
        first, rest = [(0, 0, at)], [(at, at, end)]
        left = copy_columns(keys, first), copy_columns(values, first)
        right = copy_columns(keys, rest), copy_columns(values, rest)
        mx.eval(left, right)  # type: ignore[no-untyped-call]  # or each keeps the whole
        return left, right

    def clone(self) -> KVCache:
        """Returns an independent cache with the same tokens.

        The memory is shared until one of the two writes.
        """
        other = KVCache(self.memory.step, self.memory.fill, self.mask)
        other.memory.share(self.memory)
        other.offset = self.offset
        return other
