"""The full cache, whatever the framework: offsets and snapshots over a memory."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.layer import LayerCache
from lockstep.impl.shared.memory import Arrays, Linear, Snapshot


class KVCacheBase(LayerCache):
    """Every token stays until it is trimmed: position p at index p of the memory."""

    memory: Linear
    can_split = True

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V; returns those of all tokens."""
        length = keys.shape[2]
        self.write(self.offset, (keys, values))
        self.advance(length)
        return self.memory.read(0, self.offset)

    def write(self, position: int, arrays: Arrays) -> None:
        """Puts K and V [1, heads, length, dim] at the positions from `position` on."""
        memory, end = self.memory, position + arrays[0].shape[2]
        if memory.named:
            memory.secure(position, end)
        memory.reserve(arrays, position, end)
        memory.write(position, end, arrays)

    def view(self) -> Arrays | None:
        """K and V of all tokens; None if there are none."""
        return self.memory.read(0, self.offset) if self.offset else None

    def state(self) -> Arrays | None:
        """The same as `view`: a full cache holds nothing else."""
        return self.view()

    def size(self) -> int:
        return self.offset

    def trim(self, count: int) -> int:
        """Takes back up to `count` tokens from the end; returns how many."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        trimmed = min(count, self.offset)
        self.offset -= trimmed
        return trimmed

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, begin, begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Whether `restore` would do it, and not refuse."""
        if snapshot is None:
            return 0 <= target <= self.offset
        return 0 <= target <= snapshot.end and self.offset >= snapshot.begin

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`; False, and nothing changed, if it cannot
        be reached.

        Without a snapshot: back. With one of [a, b): a ≤ offset and target ≤ b are
        needed; what is live below a stays.
        """
        if not self.can_restore(snapshot, target):
            return False
        needed = snapshot is not None and target > snapshot.begin
        if snapshot is not None and needed and not snapshot.is_in(self.memory):
            length = target - snapshot.begin
            keys, values = (array[:, :, :length] for array in snapshot.read())
            self.write(snapshot.begin, (keys, values))
        self.offset = target
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Cuts [a, b) at `at`; an empty side is None. The input is consumed."""
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

    def cut(self, arrays: Arrays, at: int) -> tuple[Arrays, Arrays]:
        """Two ranges, in arrays of their own, from one."""
        raise NotImplementedError

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins [a, b) and [b, c); None if either is None. The inputs are consumed.

        Raises ValueError if they are not adjacent; nothing is consumed then.
        """
        if parent is None or child is None:
            for alone in (parent, child):
                if alone is not None:
                    alone.close()
            return None
        if parent.end != child.begin:
            raise ValueError(
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
