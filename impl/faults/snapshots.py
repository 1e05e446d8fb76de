"""Mistakes with snapshots: copy, split, merge and restore."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.memory import Snapshot


@mistake("kv", 6, "ollama 144893850")
def snapshot_alias(cache: Any) -> None:
    """A snapshot that is not copied yet is overwritten: the cache goes back and appends
    other tokens."""
    cache.memory.secure = lambda *update: None


@mistake("rotating", 5, "mlx-lm `state`")
def snapshot_shares_buffer(cache: Any) -> None:
    """A snapshot is a view of the live buffer."""
    memory = cache.memory
    memory.touches = lambda snapshot, *update: not memory.columns.fits(*update)


@mistake("kv", 3)
def split_at_edge(cache: Any) -> None:
    """A split at the first or last offset returns an empty snapshot instead of None."""
    split = cache.split

    def split_at_end(snapshot: Snapshot, at: int) -> Any:
        parent, child = split(snapshot, at)
        if at == snapshot.begin:
            parent = cache.get_snapshot(at, at)
        if at == snapshot.end:
            child = cache.get_snapshot(at, at)
        return parent, child

    cache.split = split_at_end


@mistake("kv", 5)
def merge_order(cache: Any) -> None:
    """Parent and child are concatenated in the wrong order."""
    merge, join = cache.merge, cache.memory.join

    def copy_and_merge(parent: Snapshot | None, child: Snapshot | None) -> Any:
        for snapshot in (parent, child):
            if snapshot is not None:
                snapshot.own()
        return merge(parent, child)

    cache.memory.join = lambda pieces: join(pieces[::-1])
    cache.merge = copy_and_merge


@mistake("kv", 4)
def restore_in_place(cache: Any) -> None:
    """A snapshot that was not copied yet is assumed to be in the memory of the cache that
    restores it."""
    edit(cache, "restore", "not snapshot.is_in(self.memory)", "snapshot.memory is None")
