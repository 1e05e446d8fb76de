"""The code that all memories of K and V on MLX share.

An MLX array is a value and is evaluated lazily. Assigning to a slice of a buffer makes a
new value. When it is evaluated, it is written in place if nothing else refers to the old
value, and otherwise into a copy of the whole buffer. Therefore returned arrays never
change; a step moves only its own tokens once the arrays of the step before have been
dropped; and the memory must not keep a reference to a buffer that is about to be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from lockstep.impl.mlx.wide import Span, join_wide, read_wide
from lockstep.impl.shared.memory import Part, TokenMemory

Pair = tuple[mx.array, mx.array]


class PairMemory(TokenMemory):
    """Two buffers, of K and of V, with room for `capacity` consecutive positions.

    Attributes:
        fill: initial content of the memory; any value costs the same.
    """

    buffers: Pair | None
    fill: float

    def copy(self, begin: int, end: int) -> Pair:
        """Returns compact copies, computed at once.

        Until they are computed, they refer to the buffers, and the next write would copy
        the whole of these.
        """
        assert self.buffers is not None
        parts = self.find_columns(begin, end)
        keys, values = (copy_columns(buffer, parts) for buffer in self.buffers)
        mx.eval(keys, values)  # type: ignore[no-untyped-call]
        return keys, values

    def extend(self, old: mx.array, span: Span, room: int) -> mx.array:
        """Returns a buffer of `room` positions that begins with a span of an old one."""
        batch, heads, _, dim = old.shape
        used = span[1] - span[0]
        fresh = mx.full((batch, heads, room - used, dim), self.fill, old.dtype)
        return join_wide(old, span, fresh) if used else fresh

    def join(self, left: Pair, right: Pair) -> Pair:
        keys = mx.concatenate([left[0], right[0]], axis=2)
        return keys, mx.concatenate([left[1], right[1]], axis=2)

    def get_bytes(self, arrays: Pair) -> int:
        return arrays[0].nbytes + arrays[1].nbytes

    def list_arrays(self) -> Sequence[mx.array]:
        return self.buffers or ()

    def share(self, other: Self) -> None:
        """Takes the buffers of `other`; the first of the two to write gets a copy.

        Assigning to a slice changes the array that the Python object refers to, so each
        memory needs its own objects for the same values.
        """
        if other.buffers is not None:
            self.buffers = other.buffers[0][...], other.buffers[1][...]
            self.capacity, self.form = other.capacity, other.form


def join_columns(buffer: mx.array, parts: Sequence[Part]) -> mx.array:
    """Returns columns, one part behind the other."""
    return mx.concatenate([buffer[:, :, begin:end] for _, begin, end in parts], axis=2)


def copy_columns(buffer: mx.array, parts: Sequence[Part]) -> mx.array:
    """Returns columns in an array that, once it is computed, does not keep the buffer
    alive; see `make_compact`."""
    count = sum(end - begin for _, begin, end in parts)
    return read_wide(buffer, count, lambda wide: mx.contiguous(join_columns(wide, parts)))


def make_compact(arrays: Pair) -> Pair:
    """Returns the same content in arrays that do not keep their source alive.

    `mx.contiguous` copies nothing if that would save at most 16 KiB.
    """
    return mx.contiguous(arrays[0]), mx.contiguous(arrays[1])
