"""The code that layer caches of all kinds share: clearing, snapshots and captures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lockstep.impl.shared.captures import Captures
from lockstep.impl.shared.memory import Memory, Snapshot


class LayerCache(ABC):
    """One sequence in one layer.

    Attributes:
        memory: the arrays.
        can_split: whether a snapshot can restore any offset in it, not only its end.
        offset: number of tokens written, less those trimmed.
        captures: the scheduled snapshots.
    """

    memory: Memory
    can_split = False

    def __init__(self) -> None:
        self.offset = 0
        self.captures = Captures(whole=not self.can_split)

    @abstractmethod
    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        """Returns the snapshot [begin, end), where `end` was just reached by a write."""

    def free(self) -> None:
        """Resets the cache and its schedule. Earlier snapshots stay valid."""
        self.memory.secure_all()
        self.memory.clear()
        self.captures.drop()
        self.offset = 0

    def snapshot(self, begin: int) -> Snapshot | None:
        """Returns a lazy snapshot of [begin, offset); None if it is empty."""
        begin = max(0, begin)
        return self.get_snapshot(begin, self.offset) if begin < self.offset else None

    def held(self) -> dict[str, int]:
        """Counts what the cache and its snapshots hold; see `Memory.held`."""
        return self.memory.held()

    def close(self, snapshot: Snapshot) -> None:
        """Releases a snapshot."""
        snapshot.close()

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures; see `Captures.prepare`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        """Returns the captures that `prepare` scheduled, None if no write reached one."""
        return self.captures.take()

    def advance(self, length: int) -> None:
        """Moves the offset past `length` written tokens and makes the captures that are
        due."""
        before = self.offset
        self.offset += length
        if self.captures.boundaries:
            self.captures.reach(before + 1, self.offset, self.get_snapshot)


class WholeSnapshots(LayerCache):
    """The split and merge of kinds whose snapshots cannot be cut.

    The later snapshot of two contains all that a restore needs.
    """

    def capture_here(self, check: Callable[[], None]) -> None:
        """Makes the capture that is due where a write is about to begin, if any.

        Args:
            check: raises ValueError if the write will be refused.
        """
        if self.captures.boundaries and self.offset:
            check()
            self.captures.reach(self.offset, self.offset, self.get_snapshot)

    def split(self, snapshot: Snapshot, at: int) -> tuple[None, Snapshot]:
        """Returns the whole snapshot on the right, wherever the cut is."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Closes the parent and returns the child."""
        if parent is not None:
            parent.close()
        return child
