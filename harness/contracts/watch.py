"""Arrays under watch: those that went to a cache or came from it, and what they held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.core.errors import Broken

MOST_KEPT = 12
"""Pairs of arrays under watch at a time: the latest."""

TOO_EARLY = "before it was allowed to"

Content = tuple[tuple[int, ...], bytes]
"""The shape of an array, and what it holds."""


@dataclass(eq=False)
class Kept:
    """The arrays of one call.

    Attributes:
        owner: name of the cache.
        operation: its operation.
        is_given: whether the cache was given them; otherwise it returned them.
        arrays: the arrays.
        content: what they held when that was noted last.
    """

    owner: str
    operation: str
    is_given: bool
    arrays: Sequence[Array]
    content: Sequence[Content] = field(default_factory=list)

    def note(self, arrays: Arrays) -> None:
        """Notes what they hold now."""
        floats = [arrays.to_numpy(array) for array in self.arrays]
        self.content = [(array.shape, array.tobytes()) for array in floats]

    def check(self, arrays: Arrays, when: str) -> None:
        """Raises Broken("alias") if one has changed; says when, in words."""
        for array, (shape, content) in zip(self.arrays, self.content, strict=True):
            current = arrays.to_numpy(array)
            if current.shape != shape or not holds(current, content):
                how = "was given" if self.is_given else "returned"
                suffix = "" if self.owner == "a" else f" (cache {self.owner})"
                raise Broken(
                    "alias",
                    f"an array that {self.operation} {how} has changed {when}{suffix}",
                    operation=self.operation,
                )


class ArrayWatch:
    """The latest arrays of a program that must not change."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.kept: list[Kept] = []

    def keep(
        self, owner: str, operation: str, arrays: Sequence[Array], is_given: bool = False
    ) -> Kept:
        """Notes what the arrays hold; see `Kept`."""
        watched = Kept(owner, operation, is_given, list(arrays))
        watched.note(self.arrays)
        self.kept.append(watched)
        del self.kept[:-MOST_KEPT]
        return watched

    def check(self, owner: str | None = None, when: str = TOO_EARLY) -> None:
        """Raises Broken("alias") if an array has changed.

        Args:
            owner: looks at the arrays of this cache only.
            when: says when it has changed, in words.
        """
        for watched in self.kept:
            if owner in (None, watched.owner):
                watched.check(self.arrays, when)

    def drop(self, owner: str) -> None:
        """The arrays that a cache has returned are no longer promised to hold anything.

        Those that it was given are the caller's for good.
        """
        if self.kept:
            self.kept = [
                watched
                for watched in self.kept
                if watched.is_given or watched.owner != owner
            ]


def holds(array: npt.NDArray[Any], content: bytes) -> bool:
    """Says whether the array still has the numbers that are in `content`; NaN is one.
    Equal bytes, the usual case, need no look at the numbers."""
    if array.tobytes() == content:
        return True
    if array.nbytes != len(content):
        return False
    noted = np.frombuffer(content, array.dtype)
    return np.array_equal(array.ravel(), noted, equal_nan=True)
