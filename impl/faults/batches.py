"""Mistakes of batches: padding, rows that join and leave, and single caches between."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as memoize
from typing import Any

from lockstep.impl.faults.fault import edit, mistake

# --- padding ----------------------------------------------------------------------------


@mistake("batch-kv", 5)
def short_rows_get_padding(batch: Any) -> None:
    """A row that has all its tokens gets the padding of the next chunk as a token."""
    original = "min(length, coming)"
    edit(batch, "count_tokens", original, f"max(1, {original})")


@mistake("batch-rotating", 5, "mlx-lm#439")
def batch_padding_evicts(batch: Any) -> None:
    """Padding on the right enters the ring, and evicts real tokens."""
    wrong = "(padding + count if begin + length <= self.window else length)"
    edit(batch, "write", "padding + count", wrong)


@mistake("batch-kv", 5, "mlx-vlm#1889, PR#1890")
def batch_filter_keeps_padding(batch: Any) -> None:
    """Rows leave between the announcement of padding and its end, but the announcement is
    not filtered: remaining rows get the announcements of removed rows."""
    wrong = "self.coming[at] for at in range(len(numbers))"
    edit(batch, "select", "self.coming[number] for number in numbers", wrong)


@mistake("batch-kv", 4, "mlx-lm PR#1746")
def batch_extract_takes_padding(batch: Any) -> None:
    """A row that is extracted before the end of the padding takes the padding with it, as
    further tokens."""
    take = batch.take

    def take_padded(row: int) -> Any:
        cache = take(row)
        if batch.coming is not None and not batch.coming[row] and cache.offset:
            last = [array[:, :, -1:] for array in cache.view()]
            cache.update(*last)
        return cache

    batch.take = take_padded


@mistake("batch-state", 2)
def states_read_padding(batch: Any) -> None:
    """The mask of a state lacks the padding."""
    batch.make_mask = lambda length: None


# --- rows -------------------------------------------------------------------------------


@mistake("batch-kv", 2, "mlx-lm#1699, mlx-vlm PR#966")
def batch_offset_alias(batch: Any) -> None:
    """`offsets` returns an array that the next update changes in place."""
    batch.__class__ = share_offsets(type(batch))
    batch.shared_offsets = []


@memoize
def share_offsets(kind: Any) -> type:
    class Sharing(kind):  # type: ignore[misc]
        shared_offsets: list[int]

        @property
        def offsets(self) -> list[int]:
            self.shared_offsets[:] = kind.offsets.fget(self)
            return self.shared_offsets

        def update(self, keys: Any, values: Any) -> Any:
            pair = super().update(keys, values)
            _ = self.offsets
            return pair

    return Sharing


@mistake("batch-kv", 3, "mlx-lm PR#1141")
def batch_extend_other_size(batch: Any) -> None:
    """If an empty batch joins in `extend`, it gets the number of rows of the other
    batch."""
    extend = batch.extend

    def extend_by_own_rows(joined: Any) -> None:
        if not any(joined.lengths) and len(joined.lengths) != len(batch.lengths):
            joined.select([0] * len(batch.lengths))
        extend(joined)

    batch.extend = extend_by_own_rows


@mistake("batch-kv", 6)
def rows_that_join_begin_early(batch: Any) -> None:
    """The start of a row that joins is one column too low, so a column without a token is
    visible."""
    join = batch.join

    def join_early(joined: Any) -> None:
        count, is_empty = len(batch.lengths), batch.pool.arrays is None
        join(joined)
        if not is_empty:
            old_starts, new_starts = batch.pool.starts[:count], batch.pool.starts[count:]
            batch.pool.starts = (
                *old_starts,
                *(max(0, start - 1) for start in new_starts),
            )

    batch.join = join_early


@mistake("batch-kv", 3, "mlx-vlm PR#1453")
def batch_trim_noop(batch: Any) -> None:
    """`trim` does nothing and returns 0, but callers continue as if the tokens were
    removed."""
    original = "count if self.rollback([count]"
    edit(batch, "trim", original, "0 if self.rollback([0]")


@mistake("batch-state", 4, "mlx-lm PR#1169, #1177")
def batch_state_extend(batch: Any) -> None:
    """In `extend`, the states of rows are mixed up when one of the batches is empty."""
    extend = batch.extend

    def extend_reversed(joined: Any) -> None:
        was_empty = not any(batch.lengths)
        extend(joined)
        if was_empty:
            batch.select([*reversed(range(len(batch.lengths)))])

    batch.extend = extend_reversed


# --- copies -----------------------------------------------------------------------------


@mistake("batch-kv", 4, "mlx-lm PR#807")
def batch_load_skips_init(batch: Any) -> None:
    """Loading skips the constructor, so a field is missing."""
    load = batch.load

    def load_without_mask(saved: Any) -> None:
        load(saved)
        del batch.mask

    batch.load = load_without_mask


@mistake("batch-rotating", 4, "vllm-metal PR#139")
def batch_extract_short(batch: Any) -> None:
    """A row of a wrapped ring is extracted into a buffer shorter than the window."""
    take = batch.take

    def take_short(row: int) -> Any:
        single = take(row)
        if not batch.lengths[row] > batch.window > 1:
            return single
        short, (keys, values) = batch.make_single(), single.view()
        end, begin = single.offset, single.offset - batch.window + 1
        short.store(begin, begin, end, (keys[:, :, 1:], values[:, :, 1:]))
        short.offset = end
        return short

    batch.take = take_short


# --- single caches that become a batch --------------------------------------------------


@mistake("batch-kv", 4, "mlx-lm PR#755", of="singles")
def batch_merge_empty(caches: Sequence[Any]) -> None:
    """Some empty caches among others cannot be stacked."""
    if len({cache.offset == 0 for cache in caches}) == 2:
        raise TypeError("'NoneType' object is not subscriptable")


@mistake("batch-rotating", 2, "mlx-lm PR#738", of="singles")
def batch_merge_offset(caches: Sequence[Any]) -> None:
    """Wrapped rings are stacked with lengths that are off by one."""
    for cache in caches:
        if cache.offset > cache.window:
            cache.offset -= 1


@mistake("batch-rotating", 2, "mlx-lm#983, #1035", of="singles")
def batch_merge_oversize(caches: Sequence[Any]) -> None:
    """A ring cannot be stacked if its buffer is wider than the window, as it is after a
    chunk."""
    if any(cache.memory.columns.capacity > cache.window for cache in caches):
        raise ValueError("[broadcast_shapes] shapes cannot be broadcast")


@mistake("batch-rotating", 1, "mlx-vlm PR#1916", of="singles")
def batch_merge_zero(caches: Sequence[Any]) -> None:
    """Empty rings cannot be stacked."""
    if caches and not any(cache.offset for cache in caches):
        raise ValueError("max() arg is an empty sequence")
