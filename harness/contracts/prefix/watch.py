"""A layer's cache under watch: whoever stands above it closes each snapshot once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.harness.backends.broken import Broken


class WatchedCache:
    """A cache of the backend, and the snapshots of it that are open.

    refusing: `restore` refuses, as a layer may that cannot do what it should; failing: it
    does so by an exception.
    count_bytes: of the snapshot of [begin, end). broken: the first thing that was wrong;
    whoever called may have caught it.
    """

    def __init__(self, cache: Any, count_bytes: Callable[[int, int], int]) -> None:
        self.cache = cache
        self.count_bytes = count_bytes
        self.refusing = self.failing = False
        self.open: dict[int, Any] = {}
        self.broken: Broken | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    @property
    def offset(self) -> Any:
        """Asked for most of all, and sooner found here than by `__getattr__`."""
        return self.cache.offset

    @property
    def can_split(self) -> Any:
        """The same."""
        return self.cache.can_split

    def get_bytes(self) -> int:
        """Of all open snapshots."""
        snapshots = self.open.values()
        return sum(self.count_bytes(held.begin, held.end) for held in snapshots)

    def note(self, snapshot: Any) -> Any:
        if snapshot is not None:
            self.open[id(snapshot)] = snapshot
        return snapshot

    def consume(self, snapshot: Any, operation: str) -> None:
        if snapshot is None:
            return
        self.check_open(snapshot, operation)
        del self.open[id(snapshot)]

    def check_open(self, snapshot: Any, operation: str) -> None:
        if self.open.get(id(snapshot)) is not snapshot:
            broken = Broken(
                "snapshots",
                f"{operation} was given a snapshot of [{snapshot.begin}, {snapshot.end})"
                " that was closed or used up before, or is of another layer",
            )
            self.broken = self.broken or broken
            raise broken

    def snapshot(self, begin: int) -> Any:
        return self.note(self.cache.snapshot(begin))

    def take(self) -> Sequence[Any]:
        return [self.note(snapshot) for snapshot in self.cache.take()]

    def close(self, snapshot: Any) -> None:
        self.consume(snapshot, "close")
        self.cache.close(snapshot)

    def split(self, snapshot: Any, at: int) -> tuple[Any, Any]:
        self.consume(snapshot, "split")
        parent, child = self.cache.split(snapshot, at)
        return self.note(parent), self.note(child)

    def merge(self, parent: Any, child: Any) -> Any:
        merged = self.cache.merge(parent, child)
        self.consume(parent, "merge")
        self.consume(child, "merge")
        return self.note(merged)

    def restore(self, snapshot: Any, target: int) -> bool:
        if snapshot is not None:
            self.check_open(snapshot, "restore")
        if self.refusing and self.failing:
            raise RuntimeError(f"the layer cannot be brought to offset {target}")
        return False if self.refusing else bool(self.cache.restore(snapshot, target))
