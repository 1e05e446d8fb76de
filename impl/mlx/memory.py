"""The part that all memories of K and V on MLX share.

An MLX array is a value, and evaluated late. Assigning to a slice of a buffer makes a new
value; it is written into the same memory if nothing else refers to the old value when it
is evaluated, and into a copy of the whole buffer otherwise. So arrays that were handed
out never change, a step moves its own tokens only once those of the step before have been
dropped, and nothing here may hold on to a buffer that is about to be written.
"""

from __future__ import annotations

from typing import Self

import mlx.core as mx

from lockstep.impl.shared.memory import Memory

Pair = tuple[mx.array, mx.array]


class PairMemory(Memory):
    """Two buffers, of K and of V, with room for `capacity` positions in a row.

    step: see `impl.shared.memory.compute_capacity`.
    fill: what fresh memory holds; it costs the same whatever it is.
    """

    def __init__(self, step: int, fill: float) -> None:
        super().__init__()
        self.step, self.fill = step, fill
        self.buffers: Pair | None = None
        self.capacity = 0

    def copy(self, begin: int, end: int) -> Pair:
        """Compact copies, computed no later than the next write of the buffers.

        As yet they are only named: until they are computed they refer to the whole old
        buffers, and who never reads them would keep those alive. So the buffers are made
        to depend on them.
        """
        assert self.buffers is not None
        copied = make_compact(self.read(begin, end))
        keys, values = mx.depends(self.buffers, copied)
        self.buffers = keys, values
        return copied

    def join(self, left: Pair, right: Pair) -> Pair:
        keys = mx.concatenate([left[0], right[0]], axis=2)
        return keys, mx.concatenate([left[1], right[1]], axis=2)

    def get_bytes(self, arrays: Pair) -> int:
        return arrays[0].nbytes + arrays[1].nbytes

    def share(self, other: Self) -> None:
        """Starts with the buffers of `other`: the first to write gets a copy of its own.

        Assigning to a slice changes what the Python object refers to, so each memory
        needs objects of its own for the same values.
        """
        if other.buffers is not None:
            self.buffers = other.buffers[0][...], other.buffers[1][...]
            self.capacity, self.form = other.capacity, other.form

    def clear(self) -> None:
        """Lets go of the buffers; copies that wait for their next write start now."""
        if self.buffers is not None:
            mx.async_eval(self.buffers)  # type: ignore[no-untyped-call]
        self.buffers, self.capacity, self.form = None, 0, None


def make_compact(arrays: Pair) -> Pair:
    """The same in arrays that do not keep alive what they were cut from.

    Nothing is copied where at most 16 KiB would be saved: `mx.contiguous` sees to that.
    """
    return mx.contiguous(arrays[0]), mx.contiguous(arrays[1])
