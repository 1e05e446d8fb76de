"""The full cache for any framework: offsets and snapshots."""

from __future__ import annotations

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import TokenCache
from lockstep.impl.shared.memory import Snapshot


class KVCacheBase(TokenCache):
    """A cache that keeps every token until it is trimmed; position p is at index p."""

    can_split = True

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, begin, begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        if snapshot is None:
            return 0 <= target <= self.offset
        return 0 <= target <= snapshot.end and self.offset >= snapshot.begin

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: a snapshot of positions [a, b), with a ≤ offset. The cache keeps its
                tokens before a, and takes the tokens from a on from the snapshot. None to
                go back to an earlier offset.
            target: the new offset, at most b.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        needed = snapshot is not None and target > snapshot.begin
        if snapshot is not None and needed and not snapshot.is_in(self.memory):
            self.store(0, snapshot.begin, target, snapshot.read_first(target))
        self.offset = target
        return True

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Cuts a snapshot [a, b) into [a, at) and [at, b), and consumes it. An empty side
        is None."""
        begin, end = snapshot.begin, snapshot.end
        if at <= begin:
            return None, snapshot
        if at >= end:
            return snapshot, None
        if snapshot.memory is not None:
            memory = snapshot.memory
            halves = Snapshot(memory, begin, begin, at), Snapshot(memory, at, at, end)
        else:
            arrays, cut = snapshot.read(), at - begin
            first = self.memory.copy_runs(arrays, [(begin, 0, cut)])
            last = self.memory.copy_runs(arrays, [(at, cut, end - begin)])
            halves = (
                Snapshot.owning(self.memory, first, begin, at),
                Snapshot.owning(self.memory, last, at, end),
            )
        snapshot.close()
        return halves

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins snapshots [a, b) and [b, c) into [a, c), and consumes them. Returns None
        if either is None.

        Raises:
            MisuseError: the snapshots are not adjacent. Nothing is consumed.
        """
        if parent is None or child is None:
            for snapshot in (parent, child):
                if snapshot is not None:
                    snapshot.close()
            return None
        if parent.end != child.begin:
            raise MisuseError(
                f"merge: the parent, [{parent.begin}, {parent.end}), must end where the"
                f" child, [{child.begin}, {child.end}), begins"
            )
        if parent.memory is not None and parent.memory is child.memory:
            merged = Snapshot(parent.memory, parent.begin, parent.begin, child.end)
        else:
            arrays = self.memory.join([parent.read(), child.read()])
            merged = Snapshot.owning(self.memory, arrays, parent.begin, child.end)
        parent.close()
        child.close()
        return merged
