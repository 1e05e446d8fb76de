"""Lists of several caches in one layer, for one request or for a batch.

Callers write tokens to the caches of a list, and read tokens from them, as with any other
cache. Operations on all tokens or rows are methods of the list: they apply to all caches,
or to none if a cache refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Self

from lockstep.impl.shared.batched import CacheBatch
from lockstep.impl.shared.errors import MisuseError

Open = Callable[[Mapping[str, Any]], Any]


class Parts:
    """Several caches of one layer.

    Args:
        caches: at least one cache.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        if not caches:
            raise MisuseError("a list needs at least one cache, but none was given")
        self.parts = tuple(caches)

    def clone(self) -> Self:
        """Returns an independent list with the same tokens."""
        return type(self)([cache.clone() for cache in self.parts])

    def free(self) -> None:
        """Empties all parts."""
        for cache in self.parts:
            cache.free()

    def held(self) -> dict[str, int]:
        """Counts the bytes of all parts."""
        total = Counter[str]()
        for cache in self.parts:
            total.update(cache.held())
        return dict(total)


class ListCache(Parts):
    """A list of single caches, all with the tokens of one request."""

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of each part, or all tokens if there are fewer.

        Returns:
            The number of removed tokens; 0 if a part refuses. Then nothing changes.
        """
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        offset = self.parts[0].offset
        trimmed = min(count, offset)
        if not all(cache.can_restore(None, offset - trimmed) for cache in self.parts):
            return 0
        for cache in self.parts:
            cache.trim(trimmed)
        return trimmed


def in_all(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a method that calls a method of the same name in all batches of a list."""

    @wraps(method)
    def call(self: Parts, *arguments: Any) -> None:
        for cache in self.parts:
            getattr(cache, method.__name__)(*arguments)

    return call


class ListBatch(Parts):
    """A list of batches, all with the rows of the same requests."""

    parts: tuple[CacheBatch, ...]

    pad_left = in_all(CacheBatch.pad_left)
    pad_right = in_all(CacheBatch.pad_right)
    finalize = in_all(CacheBatch.finalize)
    filter = in_all(CacheBatch.filter)
    select = in_all(CacheBatch.select)
    repeat = in_all(CacheBatch.repeat)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of each row.

        Returns:
            The number of removed tokens of each row; 0 if a part refuses.
        """
        return count if self.rollback([count] * len(self.parts[0].lengths)) else 0

    def rollback(self, counts: Sequence[int]) -> bool:
        """Removes the last `counts[row]` tokens of each row.

        Returns:
            False if a part refuses. Then nothing changes.
        """
        self.parts[0].check_counts(counts)
        if not all(cache.may_roll_back(counts) for cache in self.parts):
            return False
        for cache in self.parts:
            cache.rollback(counts)
        return True

    def extend(self, joined: Self) -> None:
        """Appends the rows of another batch, and consumes that batch."""
        if len(self.parts) != len(joined.parts):
            raise MisuseError(
                f"extend: the other list has {len(joined.parts)} caches, but must have"
                f" {len(self.parts)}, as this list has"
            )
        pairs = [*zip(self.parts, joined.parts, strict=True)]
        for cache, joined_cache in pairs:
            cache.check_extend(joined_cache)
        for cache, joined_cache in pairs:
            cache.extend(joined_cache)

    def extract(self, row: int) -> ListCache:
        """Returns an independent list with the tokens of one row."""
        return ListCache([cache.extract(row) for cache in self.parts])

    @classmethod
    def stack(
        cls, caches: Sequence[ListCache], batches: Sequence[type[CacheBatch]]
    ) -> Self:
        """Returns a batch of single lists, and consumes these lists.

        Args:
            caches: the lists.
            batches: the class of each part of the batch.
        """
        counts = [len(cache.parts) for cache in caches]
        if set(counts) - {len(batches)}:
            raise MisuseError(
                f"stack: the lists have {counts} caches, but each must have"
                f" {len(batches)}"
            )
        columns = [[cache.parts[at] for cache in caches] for at in range(len(batches))]
        pairs = [*zip(batches, columns, strict=True)]
        for batch, column in pairs:
            batch.check_singles(column)
        return cls([batch.stack(column) for batch, column in pairs])

    def save(self) -> list[dict[str, Any]]:
        """Returns the saved content of each part."""
        return [cache.save() for cache in self.parts]

    def load(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the rows of an empty batch by rows that `save` returned."""
        if len(saved) != len(self.parts):
            raise MisuseError(
                f"load: {len(saved)} caches were saved, but this list has"
                f" {len(self.parts)}"
            )
        pairs = [*zip(self.parts, map(dict, saved), strict=True)]
        for cache, content in pairs:
            cache.check_saved(content)
        for cache, content in pairs:
            cache.load(content)


def open_list(
    config: Mapping[str, Any], open_part: Open, batches: Mapping[str, type[CacheBatch]]
) -> ListBatch | ListCache:
    """Returns a batch of lists or a single list.

    If config["caches"] is set, returns a batch of these single lists, and consumes them.
    If config["rows"] is set, returns a batch of empty lists. Otherwise, returns a single
    list.

    Args:
        config: its "parts" are complete configs.
        open_part: opens a cache of the list from its config, with the same "rows".
        batches: the class of the batches of each kind.
    """
    singles, configs = config["caches"], config["parts"]
    if singles is not None:
        return ListBatch.stack(singles, [batches[config["kind"]] for config in configs])
    common = {"rows": config["rows"], "caches": None}
    caches = [open_part({**config, **common}) for config in configs]
    return ListCache(caches) if config["rows"] is None else ListBatch(caches)
