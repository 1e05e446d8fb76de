"""Mistakes of layer caches that we thought up: with snapshots."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.invented.layer import invent
from lockstep.impl.shared.memory import Arrays, Snapshot

Parts = tuple[Snapshot | None, Snapshot | None]

# --- snapshot ---------------------------------------------------------------------------


@invent("snapshot", "bound", "rotating", 5)
def chunk_runs_into_snapshot(cache: Any) -> None:
    """A snapshot is copied if a write begins in it, but not if a chunk begins behind it
    and reaches it around the ring."""

    def touches(snapshot: Snapshot, begin: int, end: int) -> bool:
        ahead = (begin - snapshot.first) % cache.memory.capacity
        return bool(ahead < snapshot.end - snapshot.first)

    cache.memory.touches = touches


@invent("snapshot", "evicted too early", "kv", 6)
def snapshot_copies_live_tokens(cache: Any) -> None:
    """A late copy has only those of its tokens that were not taken back meanwhile."""
    copy = cache.memory.copy
    cache.memory.copy = lambda begin, end: copy(begin, max(begin, min(end, cache.offset)))


@invent("snapshot", "aliasing", "rotating", 4)
def snapshot_kept_by_range(cache: Any) -> None:
    """Who asks for the same range again gets the same snapshot, closed or not."""
    get_snapshot = cache.get_snapshot
    snapshots: dict[tuple[int, int], Snapshot] = {}

    def get_once(begin: int, end: int) -> Snapshot:
        if (begin, end) not in snapshots:
            snapshots[begin, end] = get_snapshot(begin, end)
        return snapshots[begin, end]

    cache.get_snapshot = get_once


# --- restore ----------------------------------------------------------------------------


@invent("restore", "wrong sequence", "kv", 4)
def restore_in_place(cache: Any) -> None:
    """A snapshot that was not copied yet is taken to be in the memory of the cache that
    restores it."""
    restore = cache.restore

    def move_offset(snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is None or snapshot.memory is None:
            return bool(restore(snapshot, target))
        restored = bool(cache.can_restore(snapshot, target))
        cache.offset = target if restored else cache.offset
        return restored

    cache.restore = move_offset


@invent("restore", "evicted too late", "kv", 6)
def restore_what_is_missing(cache: Any) -> None:
    """Where the cache has tokens, the snapshot's are not written: they are taken to be
    the same."""
    write = cache.write

    def write_missing(position: int, arrays: Arrays) -> None:
        live = max(0, cache.offset - position)
        keys, values = (array[:, :, live:] for array in arrays)
        if keys.shape[2]:
            write(position + live, (keys, values))

    cache.write = write_missing


@invent("restore", "missing rollback", "rotating", 5)
def refused_restore_writes(cache: Any) -> None:
    """The window of the snapshot is written before the target is found out of reach."""
    restore = cache.restore

    def write_and_restore(snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is not None and not snapshot.is_in(cache.memory):
            cache.write(snapshot.first, snapshot.read())
        return bool(restore(snapshot, target))

    cache.restore = write_and_restore


@invent("restore", "error class", "kv", 3)
def restore_across_gap_raises(cache: Any) -> None:
    """A snapshot that begins ahead of the cache is an error, not refused."""
    restore = cache.restore

    def restore_or_raise(snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is not None and snapshot.begin > cache.offset:
            raise ValueError(f"nothing is at [{cache.offset}, {snapshot.begin})")
        return bool(restore(snapshot, target))

    cache.restore = restore_or_raise


@invent("restore", "silent clamp", "kv", 3)
def restore_not_below_snapshot(cache: Any) -> None:
    """A target below the snapshot becomes its begin."""
    restore = cache.restore

    def restore_clamped(snapshot: Snapshot | None, target: int) -> bool:
        is_below = snapshot is not None and 0 <= target < snapshot.begin
        return bool(
            restore(snapshot, snapshot.begin if snapshot and is_below else target)
        )

    cache.restore = restore_clamped


@invent("restore", "wrong dtype", "state", 4)
def restore_widens_convolution(cache: Any) -> None:
    """Whatever is restored is float32, the convolution inputs as well."""
    restore, memory = cache.restore, cache.memory

    def restore_wide(snapshot: Snapshot | None, target: int) -> bool:
        restored = bool(restore(snapshot, target))
        if restored and snapshot is not None:
            conv, delta = memory.buffers
            memory.buffers = conv + 0 * delta.flatten()[:1], delta
        return restored

    cache.restore = restore_wide


# --- split ------------------------------------------------------------------------------


@invent("split", "aliasing", "kv", 4)
def child_closes_parent(cache: Any) -> None:
    """The parts of a snapshot are closed together."""
    split = cache.split

    def split_and_tie(snapshot: Snapshot, at: int) -> Parts:
        parent, child = split(snapshot, at)
        if parent is not None and child is not None:
            close = child.close
            child.close = lambda: (parent.close(), close())
        return parent, child

    cache.split = split_and_tie


@invent("split", "order", "state", 3)
def whole_goes_left(cache: Any) -> None:
    """A state that is cut behind its end goes to the left, as tokens would."""
    split = cache.split

    def split_like_tokens(snapshot: Snapshot, at: int) -> Parts:
        parts: Parts = split(snapshot, at)
        return parts[::-1] if at >= snapshot.end else parts

    cache.split = split_like_tokens


# --- merge ------------------------------------------------------------------------------


@invent("merge", "error class", "kv", 4)
def merge_raises_lookup_error(cache: Any) -> None:
    """Ranges that are not adjacent raise LookupError, which callers do not expect."""
    merge = cache.merge

    def merge_or_raise(parent: Any, child: Any) -> Any:
        try:
            return merge(parent, child)
        except ValueError as error:
            raise LookupError(*error.args) from error

    cache.merge = merge_or_raise


@invent("merge", "missing rollback", "kv", 5)
def refused_merge_closes_parent(cache: Any) -> None:
    """The parent is gone before the ranges are found not to be adjacent."""
    merge = cache.merge

    def merge_or_close(parent: Any, child: Any) -> Any:
        try:
            return merge(parent, child)
        except ValueError:
            parent.close()
            raise

    cache.merge = merge_or_close


@invent("merge", "evicted too early", "rotating", 3)
def merge_needs_parent(cache: Any) -> None:
    """A window without a parent is dropped, as tokens without those before them are."""
    merge = cache.merge

    def merge_both(parent: Any, child: Any) -> Any:
        if parent is None and child is not None:
            child.close()
            return None
        return merge(parent, child)

    cache.merge = merge_both


# --- close ------------------------------------------------------------------------------


@invent("close", "aliasing", "kv", 6)
def close_forgets_others(cache: Any) -> None:
    """With a closed snapshot, the memory forgets all that name its tokens: none of them
    is copied any more."""

    def close(snapshot: Snapshot) -> None:
        memory = snapshot.memory
        snapshot.close()
        if memory is not None:
            memory.named.clear()

    cache.close = close


@invent("close", "evicted too early", "state", 4)
def last_close_clears_memory(cache: Any) -> None:
    """When the last snapshot is closed that names a memory, it is cleared, though the
    cache still uses it."""

    def close(snapshot: Snapshot) -> None:
        memory = snapshot.memory
        snapshot.close()
        if memory is not None and not memory.named:
            memory.clear()

    cache.close = close
