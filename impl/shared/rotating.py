"""The sliding window, whatever the framework: offsets and snapshots over a ring."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.layer import WholeSnapshots
from lockstep.impl.shared.memory import Arrays, Ring, Snapshot


class RotatingCacheBase(WholeSnapshots):
    """The last `window` tokens. Position p stands in slot p mod capacity of the ring."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window {window} holds no token")
        super().__init__()
        self.window = window

    memory: Ring

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V; returns those of the last
        window - 1 old tokens and of all new ones, in the order of positions."""
        length = keys.shape[2]
        memory, begin, arrays = self.memory, self.offset, (keys, values)
        first, end = begin - self.count_before(length), begin + length
        if memory.named:
            memory.secure(begin, end)
        memory.reserve(arrays, first, begin, end - first)
        memory.write(begin, end, arrays)
        self.advance(length)
        return memory.read(first, end)

    def write(self, position: int, arrays: Arrays) -> None:
        """Puts a window in the place of all that is there."""
        end = position + arrays[0].shape[2]
        self.memory.secure(position, end)
        self.memory.reserve(arrays, position, position, end - position)
        self.memory.write(position, end, arrays)

    def get_first(self, offset: int) -> int:
        """The first position of the window that ends before `offset`."""
        return max(0, offset - self.window)

    def count_before(self, length: int) -> int:
        """The number of old tokens that come along with `length` new ones: all that the
        first of these may see."""
        return min(self.offset, self.window - 1)

    def view(self) -> Arrays | None:
        """K and V of the window, in the order of positions; None if it is empty."""
        if not self.offset:
            return None
        return self.memory.read(self.get_first(self.offset), self.offset)

    def state(self) -> Arrays | None:
        """The same as `view`."""
        return self.view()

    def size(self) -> int:
        return min(self.offset, self.window)

    def trim(self, count: int) -> int:
        """Takes back up to `count` tokens from the end, and returns how many: none once
        tokens have slid out, for the window before would need them."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        if self.offset > self.window:
            return 0
        trimmed = min(count, self.offset)
        self.offset -= trimmed
        return trimmed

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, self.get_first(end), begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Whether `restore` would do it, and not refuse."""
        end = self.offset if snapshot is None else snapshot.end
        return target == end or 0 <= target < end <= self.window

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`; False, and nothing changed, if it cannot
        be reached.

        Without a snapshot: to where it stands, or back while nothing has slid out. With
        one, it replaces everything; to stop short of its end, nothing may have slid out
        of it.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and not snapshot.is_in(self.memory):
            self.write(snapshot.first, snapshot.read())
        self.offset = target
        return True
