"""The recurrent state on MLX. It stores arrays without a copy, because the content of an
MLX array never changes."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.shared.memory import Memory
from lockstep.impl.shared.state import StateCacheBase


class StateMemory(Memory):
    """conv and delta after all tokens so far; methods ignore positions.

    A write replaces the arrays, so arrays that were read before need no copy.
    """

    def __init__(self, conv: mx.array, delta: mx.array) -> None:
        super().__init__()
        self.buffers = conv, delta

    def read(self, begin: int, end: int) -> Pair:
        """Returns new array objects with the same content, so that a slice assignment by
        the caller does not change the memory."""
        conv, delta = self.buffers
        return conv[...], delta[...]

    def copy(self, begin: int, end: int) -> Pair:
        return self.read(begin, end)

    def write(self, arrays: Pair) -> None:
        """Stores compact copies of the arrays, because conv is usually the end of a
        longer array."""
        self.buffers = make_compact(arrays)

    def clear(self) -> None:
        conv, delta = self.buffers
        self.buffers = mx.zeros_like(conv), mx.zeros_like(delta)


class StateCache(StateCacheBase):
    """The state of a linear-recurrent layer, batch 1, initially zeros.

    The arrays that `read` returns keep their content.

    Args:
        conv: shape [1, conv_width - 1, channels].
        delta: shape [1, heads, key_dim, value_dim], always float32.
        dtype: the dtype of conv.
    """

    memory: StateMemory

    def __init__(
        self, conv: Sequence[int], delta: Sequence[int], dtype: mx.Dtype = mx.float32
    ) -> None:
        super().__init__()
        self.memory = StateMemory(mx.zeros(conv, dtype), mx.zeros(delta, mx.float32))

    def store(self, conv: object, delta: object) -> None:
        assert isinstance(conv, mx.array) and isinstance(delta, mx.array)
        self.memory.write((conv, delta))

    def clone(self) -> StateCache:
        """Returns an independent cache with the same state."""
        conv, delta = self.memory.buffers
        copied = StateCache(conv.shape, delta.shape, conv.dtype)
        copied.memory.buffers = self.memory.buffers
        copied.offset = self.offset
        return copied
