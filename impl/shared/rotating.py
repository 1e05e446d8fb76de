"""The sliding window for any framework: offsets and snapshots."""

from __future__ import annotations

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import TokenCache, WholeSnapshots
from lockstep.impl.shared.memory import Snapshot


class RotatingCacheBase(WholeSnapshots, TokenCache):
    """A cache that keeps the last `window` tokens, in a ring."""

    window: int

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, self.get_first(end), begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        end = self.offset if snapshot is None else snapshot.end
        return target == end or 0 <= target < end <= self.window

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the whole content. None to keep the present offset, or to
                go back to an earlier offset, which is possible only before the window
                drops a token.
            target: the new offset. It may be less than the end of the snapshot only if
                the window had dropped no token when the snapshot was taken.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and not snapshot.is_in(self.memory):
            first = snapshot.first
            self.store(first, first, snapshot.end, snapshot.read())
        self.offset = target
        return True


def check_window(window: int) -> int:
    """Returns the window.

    Raises:
        MisuseError: the window is smaller than one token.
    """
    if window < 1:
        raise MisuseError(f"window must be at least 1 token, not {window}")
    return window
