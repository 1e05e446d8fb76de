"""The caches of one model layer that needs several, such as a state and a window."""

from __future__ import annotations

from collections.abc import Sequence

from .kv import KVCache
from .rotating import RotatingCache
from .state import StateCache

Part = KVCache | RotatingCache | StateCache


class ListCache:
    """Several caches of one layer; every cache gets every token.

    Args:
        parts: the caches, at least one, all with the same tokens. The caller may not use
            them again.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        assert parts, "a list has at least one cache"
        self.parts = list(parts)

    @property
    def offset(self) -> int:
        """The number of tokens written minus tokens trimmed, equal in all caches."""
        return self.parts[0].offset

    def update(self, tags: Sequence[int]) -> None:
        """Appends one token for each tag to every cache."""
        for cache in self.parts:
            cache.update(tags)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of every cache, or all tokens if fewer.

        Returns:
            The number of removed tokens; 0 if a cache refuses, and then nothing changes.
        """
        trimmed = min(cache.clone().trim(count) for cache in self.parts)
        for cache in self.parts:
            cache.trim(trimmed)
        return trimmed

    def clone(self) -> ListCache:
        """Returns an independent list with the same tokens."""
        return ListCache([cache.clone() for cache in self.parts])

    def free(self) -> None:
        """Empties every cache."""
        for cache in self.parts:
            cache.free()
