"""Mistakes with snapshots: when they are copied, how they are cut, joined, restored."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.memory import Snapshot


def never_copy(cache: Any) -> None:
    """A lazy snapshot is not copied before what it names is overwritten."""
    cache.memory.secure = lambda begin, end: None


def view_ring(cache: Any) -> None:
    """A snapshot is a view of the ring, which later tokens go on filling."""
    cache.memory.touches = lambda snapshot, begin, end: False


def split_off_nothing(cache: Any) -> None:
    """A cut at either end of a snapshot gives two parts, of which one is empty."""
    split = cache.split

    def split_at_end(snapshot: Snapshot, at: int) -> Any:
        parent, child = split(snapshot, at)
        if at == snapshot.begin:
            parent = cache.get_snapshot(at, at)
        if at == snapshot.end:
            child = cache.get_snapshot(at, at)
        return parent, child

    cache.split = split_at_end


def merge_backwards(cache: Any) -> None:
    """What comes first is put behind what follows it."""
    merge, join = cache.merge, cache.memory.join

    def copy_and_merge(parent: Snapshot | None, child: Snapshot | None) -> Any:
        for part in (parent, child):
            if part is not None:
                part.own()
        return merge(parent, child)

    cache.memory.join = lambda left, right: join(right, left)
    cache.merge = copy_and_merge


def keep_cursor(cache: Any) -> None:
    """To stop short of a snapshot's end moves the offset, not the place of the next
    token."""
    restore, write, free = cache.restore, cache.write, cache.free

    def restore_offset(snapshot: Snapshot | None, target: int) -> bool:
        before, cache.write = cache.write, write
        restored = restore(snapshot, target)
        if not restored:
            cache.write = before
        elif snapshot is not None:
            ahead = snapshot.end - target
            cache.write = lambda position, arrays: write(position + ahead, arrays)
        return bool(restored)

    def free_all() -> None:
        free()
        cache.write = write

    cache.restore, cache.free = restore_offset, free_all
