"""The sliding window for any framework: offsets and snapshots over a ring."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import WholeSnapshots
from lockstep.impl.shared.memory import Arrays, Ring, Snapshot


class RotatingCacheBase(WholeSnapshots):
    """A cache of the last `window` tokens, in a ring.

    Args:
        window: number of tokens that are kept, at least 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise MisuseError(f"window {window} holds no token")
        super().__init__()
        self.window = window

    memory: Ring

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V.

        Returns:
            K and V of the last window - 1 old tokens and of all new ones, in order of
            position; but all see the columns of a full window, which may be in any order.
        """
        length = keys.shape[2]
        memory, begin, arrays = self.memory, self.offset, (keys, values)
        if self.captures.boundaries:
            self.capture_here(lambda: memory.accept(arrays))
        first, end = begin - self.count_before(length), begin + length
        if memory.named:
            memory.secure(begin, end)
        memory.reserve(arrays, first, begin, end - first)
        memory.write(begin, end, arrays)
        self.advance(length)
        return memory.read_window(first, end)

    def write(self, position: int, arrays: Arrays) -> None:
        """Replaces the whole content by a window that begins at `position`."""
        end = position + arrays[0].shape[2]
        self.memory.secure(position, end)
        self.memory.reserve(arrays, position, position, end - position)
        self.memory.write(position, end, arrays)

    def get_first(self, offset: int) -> int:
        """Returns the first position of the window that ends before `offset`."""
        return max(0, offset - self.window)

    def count_before(self, length: int) -> int:
        """Returns the number of old tokens that `update` returns along with `length` new
        ones: all that the first new token may see."""
        return min(self.offset, self.window - 1)

    def view(self) -> Arrays | None:
        """Returns K and V of the window, in order of position; None if it is empty."""
        if not self.offset:
            return None
        return self.memory.read(self.get_first(self.offset), self.offset)

    def state(self) -> Arrays | None:
        """Returns the same as `view`."""
        return self.view()

    def size(self) -> int:
        return min(self.offset, self.window)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all if fewer; returns how many.

        Once tokens have been evicted it removes none: the earlier window would need them.
        """
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        if self.offset > self.window:
            return 0
        trimmed = min(count, self.offset)
        self.offset -= trimmed
        return trimmed

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, self.get_first(end), begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` would not refuse."""
        end = self.offset if snapshot is None else snapshot.end
        return target == end or 0 <= target < end <= self.window

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the whole content. None to go back, which is possible as
                long as nothing was evicted, or to stay.
            target: the new offset. It may be less than the end of the snapshot only if
                nothing was evicted from that.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and not snapshot.is_in(self.memory):
            self.write(snapshot.first, snapshot.read())
        self.offset = target
        return True
