"""Watches the arrays passed to or returned by a cache, and detects changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import are_same

MOST_KEPT = 12
"""The maximum number of calls whose arrays are watched; the latest calls count."""

TOO_EARLY = "before it was allowed to"

Content = tuple[tuple[int, ...], bytes]
"""The shape and the bytes of an array."""


@dataclass(eq=False)
class Kept:
    """The watched arrays of one call.

    Attributes:
        owner: the name of the cache.
        operation: the operation that was called.
        is_given: True if the caller passed the arrays to the cache, False if the cache
            returned the arrays.
        arrays: the arrays.
        content: the content of each array at the last `note`.
    """

    owner: str
    operation: str
    is_given: bool
    arrays: Sequence[Array]
    content: Sequence[Content] = field(default_factory=list)

    def note(self, arrays: Arrays) -> None:
        """Records the current content of the arrays."""
        floats = [arrays.to_numpy(array) for array in self.arrays]
        self.content = [(array.shape, array.tobytes()) for array in floats]

    def check(self, arrays: Arrays, when: str) -> None:
        """Raises Broken("alias") if an array has changed; `when` ends the message."""
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
        """Starts to watch arrays and records their content; see `Kept`."""
        watched = Kept(owner, operation, is_given, list(arrays))
        watched.note(self.arrays)
        self.kept.append(watched)
        del self.kept[:-MOST_KEPT]
        return watched

    def check(self, owner: str | None = None, when: str = TOO_EARLY) -> None:
        """Raises Broken("alias") if an array has changed.

        Args:
            owner: the cache whose arrays are checked; None for all caches.
            when: the time of the change, as text for the message.
        """
        for watched in self.kept:
            if owner in (None, watched.owner):
                watched.check(self.arrays, when)

    def drop(self, owner: str) -> None:
        """Stops watching the arrays that a cache has returned.

        Continues to watch the arrays that the caller passed to the cache.
        """
        self.kept = [
            watched for watched in self.kept if watched.is_given or watched.owner != owner
        ]


def holds(array: npt.NDArray[Any], content: bytes) -> bool:
    """Tells whether the array's numbers are the numbers in `content`; see `are_same`.

    Equal bytes, the usual case, take a fast path.
    """
    if array.tobytes() == content:
        return True
    if array.nbytes != len(content):
        return False
    noted = np.frombuffer(content, array.dtype)
    return bool(are_same(array.ravel(), noted).all())
