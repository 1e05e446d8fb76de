"""The caches of one model layer that needs several, such as a state and a window."""

from __future__ import annotations

from collections.abc import Sequence

from .kv import KVCache
from .rotating import RotatingCache
from .state import StateCache
from .token import Token

Part = KVCache | RotatingCache | StateCache


class ListCache:
    """Several caches of one layer. Each gets every token, and answers for itself.

    Args:
        parts: the caches, at least one, all with the same tokens. They are used up.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        assert parts, "a list has at least one cache"
        self.parts = list(parts)

    @property
    def offset(self) -> int:
        """Number of tokens written, less those trimmed: the same in each part."""
        return self.parts[0].offset

    @property
    def tokens(self) -> list[Token]:
        """All tokens, also those that have left a window."""
        return self.parts[0].tokens

    def update(self, tags: Sequence[int]) -> None:
        """Appends one token for each tag to each part."""
        for cache in self.parts:
            cache.update(tags)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of each part, or all if fewer.

        Returns:
            How many; 0 if a part refuses. Then nothing changes.
        """
        trimmed = min(cache.clone().trim(count) for cache in self.parts)
        for cache in self.parts:
            cache.trim(trimmed)
        return trimmed

    def clone(self) -> ListCache:
        """Returns an independent list with the same tokens."""
        return ListCache([cache.clone() for cache in self.parts])

    def free(self) -> None:
        """Empties each part."""
        for cache in self.parts:
            cache.free()
