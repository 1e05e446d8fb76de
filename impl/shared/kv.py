"""The full cache for any framework: offsets and snapshots over a memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import LayerCache
from lockstep.impl.shared.memory import Arrays, Linear, Snapshot


class KVCacheBase(LayerCache):
    """A cache that keeps every token until it is trimmed: position p at index p."""

    memory: Linear
    can_split = True

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V; returns those of all tokens."""
        length = keys.shape[2]
        self.write(self.offset, (keys, values))
        self.advance(length)
        return self.memory.read(0, self.offset)

    def write(self, position: int, arrays: Arrays) -> None:
        """Writes K and V [1, heads, length, dim] to the positions from `position` on."""
        end = position + arrays[0].shape[2]
        self.make_room(position, end, arrays)
        self.memory.write(position, end, arrays)

    def make_room(self, begin: int, end: int, arrays: Arrays) -> None:
        """Makes room for [begin, end); snapshots of these positions are copied before."""
        memory = self.memory
        if memory.named:
            memory.secure(begin, end)
        memory.reserve(arrays, begin, end)

    def view(self) -> Arrays | None:
        """Returns K and V of all tokens; None if there are none."""
        return self.memory.read(0, self.offset) if self.offset else None

    def state(self) -> Arrays | None:
        """Returns the same as `view`: a full cache holds nothing else."""
        return self.view()

    def size(self) -> int:
        return self.offset

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all if fewer; returns how many."""
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        trimmed = min(count, self.offset)
        self.offset -= trimmed
        return trimmed

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, begin, begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` would not refuse."""
        if snapshot is None:
            return 0 <= target <= self.offset
        return 0 <= target <= snapshot.end and self.offset >= snapshot.begin

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: [a, b), with a ≤ offset. Live tokens below a stay, the snapshot
                supplies the others. None to go back to an earlier offset.
            target: the new offset, at most b.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        needed = snapshot is not None and target > snapshot.begin
        if snapshot is not None and needed and not snapshot.is_in(self.memory):
            begin = snapshot.begin
            arrays = self.memory.select(snapshot.read_first(target), target - begin)
            self.make_room(begin, target, arrays)
            self.memory.write(begin, target, arrays)
        self.offset = target
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Cuts [a, b) into [a, at) and [at, b). An empty side is None. The input is
        consumed."""
        begin, end = snapshot.begin, snapshot.end
        if at <= begin:
            return None, snapshot
        if at >= end:
            return snapshot, None
        if snapshot.memory is not None:
            memory = snapshot.memory
            parts = Snapshot(memory, begin, begin, at), Snapshot(memory, at, at, end)
        else:
            left, right = self.cut(snapshot.read(), at - begin)
            parts = (
                Snapshot.owning(self.memory, left, begin, at),
                Snapshot.owning(self.memory, right, at, end),
            )
        snapshot.close()
        return parts

    @abstractmethod
    def cut(self, arrays: Arrays, at: int) -> tuple[Arrays, Arrays]:
        """Cuts a range in two, each in arrays of its own."""

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins [a, b) and [b, c) into [a, c); None if either is None. The inputs are
        consumed.

        Raises:
            MisuseError: the snapshots are not adjacent. Nothing is consumed.
        """
        if parent is None or child is None:
            for alone in (parent, child):
                if alone is not None:
                    alone.close()
            return None
        if parent.end != child.begin:
            raise MisuseError(
                f"merge: [{parent.begin}, {parent.end}) and [{child.begin}, {child.end})"
                " are not adjacent"
            )
        if parent.memory is not None and parent.memory is child.memory:
            merged = Snapshot(parent.memory, parent.begin, parent.begin, child.end)
        else:
            arrays = self.memory.join(parent.read(), child.read())
            merged = Snapshot.owning(self.memory, arrays, parent.begin, child.end)
        parent.close()
        child.close()
        return merged
