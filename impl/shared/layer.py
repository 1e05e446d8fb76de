"""The part that caches of all kinds share: clearing, snapshots and captures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lockstep.impl.shared.captures import Captures
from lockstep.impl.shared.memory import Memory, Snapshot


class LayerCache(ABC):
    """One sequence in one layer.

    offset: tokens written, less those taken back. can_split: a snapshot serves any offset
    in it, not only its end.
    """

    memory: Memory
    can_split = False

    def __init__(self) -> None:
        self.offset = 0
        self.captures = Captures()

    @abstractmethod
    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        """The snapshot that ends at `end`, a position that was just written."""

    def free(self) -> None:
        """Back to an empty cache. Snapshots live on; a schedule does not."""
        self.memory.secure_all()
        self.memory.clear()
        self.captures.drop()
        self.offset = 0

    def snapshot(self, begin: int) -> Snapshot | None:
        """Puts the content from `begin` on aside, lazily; None if there is nothing."""
        begin = max(0, begin)
        return self.get_snapshot(begin, self.offset) if begin < self.offset else None

    def close(self, snapshot: Snapshot) -> None:
        """Lets go of a snapshot."""
        snapshot.close()

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures; see `Captures.prepare`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        """The captures that `prepare` asked for, None where no write came."""
        return self.captures.take()

    def advance(self, length: int) -> None:
        """The tokens are written: moves on, past scheduled captures."""
        before = self.offset
        self.offset += length
        if self.captures.boundaries:
            self.captures.reach(before, self.offset, self.get_snapshot)


class WholeSnapshots(LayerCache):
    """For kinds whose snapshot cannot be cut: the later one has all that is needed."""

    def split(self, snapshot: Snapshot, at: int) -> tuple[None, Snapshot]:
        """(None, the whole snapshot), wherever it is to be cut."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """The child; the parent is closed."""
        if parent is not None:
            parent.close()
        return child
