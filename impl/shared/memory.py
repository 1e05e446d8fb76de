"""Memory that holds tokens, and lazy snapshots of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

Arrays = tuple[Any, Any]
"""Two arrays that belong together: K and V, or the two parts of a recurrent state."""


def compute_capacity(
    capacity: int, needed: int, step: int, window: int | None = None
) -> int:
    """The next capacity of a memory that is too small for `needed` positions.

    It at least doubles, so that a token is copied a constant number of times on average,
    or reaches `needed` in multiples of `step`. Beyond `window` it does not double: single
    tokens need no more.
    """
    doubled = 2 * capacity if window is None else min(2 * capacity, window)
    return max(doubled, -(-needed // step) * step)


class Memory(ABC):
    """The arrays of one cache, addressed by token position.

    Snapshots only name positions here until a write is about to change what they name.
    """

    def __init__(self) -> None:
        self.named: WeakSet[Snapshot] = WeakSet()
        self.form: tuple[Any, ...] | None = None
        self.accepted: tuple[Any, ...] | None = None

    @abstractmethod
    def read(self, begin: int, end: int) -> Arrays:
        """The content of the positions [begin, end), without copying where possible."""

    @abstractmethod
    def copy(self, begin: int, end: int) -> Arrays:
        """The same in arrays of their own, no larger than they need to be."""

    @abstractmethod
    def join(self, left: Arrays, right: Arrays) -> Arrays:
        """Two neighbouring ranges as one."""

    @abstractmethod
    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        """Whether writing the positions [begin, end) changes what `snapshot` names."""

    @abstractmethod
    def get_bytes(self, arrays: Arrays) -> int: ...

    def accept(self, arrays: Arrays) -> None:
        """Raises ValueError for K and V that do not belong together, or not to what is
        held: written as they are, they would be broadcast without a word.

        What looks like the last arrays needs no second look: a model's steps all do.
        """
        keys, values = arrays
        looks = keys.shape, values.shape, keys.dtype, values.dtype
        if self.form is not None and looks == self.accepted:
            return
        if keys.shape[:3] != values.shape[:3]:
            raise ValueError(
                f"K {list(keys.shape)} and V {list(values.shape)} differ in batch, heads"
                " or length"
            )
        form = (*keys.shape[:2], keys.shape[3], values.shape[3], keys.dtype, values.dtype)
        if self.form is None:
            self.form = form
        elif form != self.form:
            raise ValueError(
                f"batch, heads, key_dim, value_dim, dtypes are {list(form)}; this cache"
                f" holds {list(self.form)}"
            )
        self.accepted = looks

    @abstractmethod
    def clear(self) -> None:
        """Gives the arrays back, or makes them as new."""

    def secure(self, begin: int, end: int) -> None:
        """Before a write to [begin, end): snapshots that it would change copy first."""
        for snapshot in self.list_named():
            if self.touches(snapshot, begin, end):
                snapshot.own()

    def secure_all(self) -> None:
        """Before all memory goes."""
        for snapshot in self.list_named():
            snapshot.own()

    def list_named(self) -> list[Snapshot]:
        """Mostly there are none, and to go through an empty WeakSet takes long."""
        return list(self.named) if self.named else []


class Linear(Memory):
    """Position p stands at index p.

    capacity: the positions that there is room for.
    """

    capacity: int

    @abstractmethod
    def reserve(self, like: Arrays, used: int, needed: int) -> None:
        """Makes room for `needed` positions; the first `used` keep what they hold."""

    @abstractmethod
    def write(self, begin: int, end: int, arrays: Arrays) -> None: ...

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        return snapshot.first < end and begin < snapshot.end


class Ring(Memory):
    """Position p stands in slot p mod capacity."""

    capacity: int

    @abstractmethod
    def reserve(self, like: Arrays, begin: int, end: int, needed: int) -> None:
        """Makes room for `needed` positions in a row; [begin, end) stay as they are."""

    @abstractmethod
    def write(self, begin: int, end: int, arrays: Arrays) -> None: ...

    def join(self, left: Arrays, right: Arrays) -> Arrays:
        raise NotImplementedError("windows are not joined")

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        """Whether a slot of [begin, end) is one of the snapshot's, around the ring."""
        ahead = (begin - snapshot.first) % self.capacity
        return (
            ahead < snapshot.end - snapshot.first or ahead + end - begin > self.capacity
        )


class Snapshot:
    """Content of a cache that was put aside, labelled [begin, end).

    It names the positions [first, end) of `memory` and owns nothing, until the cache is
    about to change what stands there; then it copies, once, and tells `on_copy` the
    bytes.
    """

    def __init__(self, memory: Memory, first: int, begin: int, end: int) -> None:
        self.first, self.begin, self.end = first, begin, end
        self.memory: Memory | None = memory
        self.arrays: Arrays | None = None
        self.nbytes = 0
        self.on_copy: Callable[[int], None] | None = None
        memory.named.add(self)

    @classmethod
    def owning(cls, memory: Memory, arrays: Arrays, begin: int, end: int) -> Snapshot:
        """One that has its own arrays from the start."""
        snapshot = cls(memory, begin, begin, end)
        snapshot.take_over(arrays)
        return snapshot

    def read(self) -> Arrays:
        """The content: a view of the cache's memory, or the own arrays."""
        if self.memory is not None:
            return self.memory.read(self.first, self.end)
        if self.arrays is None:
            raise ValueError(f"snapshot [{self.begin}, {self.end}) has been closed")
        return self.arrays

    def get_size(self) -> int:
        """The bytes that the content takes, whether or not it was copied yet."""
        if self.memory is None:
            return self.nbytes
        return self.memory.get_bytes(self.read())

    def own(self) -> None:
        """Copies what is named, if it was not copied yet."""
        if self.memory is not None:
            self.take_over(self.memory.copy(self.first, self.end))
            if self.on_copy:
                self.on_copy(self.nbytes)

    def take_over(self, arrays: Arrays) -> None:
        assert self.memory is not None
        self.nbytes = self.memory.get_bytes(arrays)
        self.memory.named.discard(self)
        self.memory, self.arrays = None, arrays

    def is_in(self, memory: Memory) -> bool:
        """Whether the content still stands in `memory`, where it is named."""
        return self.memory is memory

    def close(self) -> None:
        """Lets go of everything. Reading it afterwards is an error, closing again too."""
        if self.memory is None and self.arrays is None:
            raise ValueError(f"snapshot [{self.begin}, {self.end}) was closed before")
        if self.memory is not None:
            self.memory.named.discard(self)
        self.memory = self.arrays = None
        self.nbytes = 0
