"""The memory of a cache, and lazy snapshots of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.form import Arrays, Form

Part = tuple[int, int, int]
"""Position of some tokens, and their columns [begin, end)."""


def compute_capacity(
    capacity: int, needed: int, step: int, window: int | None = None
) -> int:
    """Returns the next capacity of a memory that is too small.

    The capacity at least doubles, so that a token is copied a constant number of times on
    average. Beyond `window` it does not double: single tokens need no more room.

    Args:
        capacity: present capacity, in positions.
        needed: number of positions to make room for.
        step: if doubling is not enough, `needed` is rounded up to a multiple of this.
        window: the capacity up to which it doubles; None for no limit.
    """
    doubled = 2 * capacity if window is None else min(2 * capacity, window)
    return max(doubled, -(-needed // step) * step)


class Memory(Form, ABC):
    """The arrays of one cache, addressed by token position.

    A snapshot only refers to positions in the memory, until a write is about to change
    them; then the snapshot copies them first.

    Attributes:
        named: the snapshots that refer to this memory.
        copies: the snapshots that have copied from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.named: WeakSet[Snapshot] = WeakSet()
        self.copies: WeakSet[Snapshot] = WeakSet()

    @abstractmethod
    def read(self, begin: int, end: int) -> Arrays:
        """Returns the content of the positions [begin, end), as a view if possible."""

    @abstractmethod
    def copy(self, begin: int, end: int) -> Arrays:
        """Returns a copy of [begin, end), no larger than its content."""

    @abstractmethod
    def get_bytes(self, arrays: Arrays) -> int: ...

    @abstractmethod
    def list_arrays(self) -> Sequence[Any]:
        """Lists the arrays that hold the content."""

    def held(self) -> dict[str, int]:
        """Counts the bytes of the arrays and of the snapshots' copies, and the open
        snapshots."""
        copies = [snapshot for snapshot in self.copies if snapshot.arrays is not None]
        size = sum(array.nbytes for array in self.list_arrays())
        size += sum(snapshot.nbytes for snapshot in copies)
        return {"bytes": size, "snapshots": len(self.named) + len(copies)}

    @abstractmethod
    def clear(self) -> None:
        """Frees the arrays, or resets them to their initial content."""

    def secure_all(self) -> None:
        """Copies all snapshots, before the whole memory changes."""
        for snapshot in self.list_named():
            snapshot.own()

    def list_named(self) -> list[Snapshot]:
        """Returns the snapshots that refer to this memory.

        Usually there are none, and iterating over an empty WeakSet is slow.
        """
        return list(self.named) if self.named else []


class TokenMemory(Memory):
    """A memory of tokens.

    Attributes:
        capacity: number of positions that there is room for.
    """

    capacity: int

    @abstractmethod
    def adopt(self, columns: Arrays, parts: Sequence[Part]) -> None:
        """Begins with a copy of the tokens of a row, and makes room for the next one.

        Args:
            columns: K and V of all columns of the row.
            parts: where its tokens are, in order; more than one only for a ring.
        """

    @abstractmethod
    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        """Returns whether a write to [begin, end) changes what `snapshot` refers to."""

    def secure(self, begin: int, end: int) -> None:
        """Copies the snapshots that a write to [begin, end) would change."""
        for snapshot in self.list_named():
            if self.touches(snapshot, begin, end):
                snapshot.own()


class Linear(TokenMemory):
    """A memory with position p at index p."""

    @abstractmethod
    def join(self, left: Arrays, right: Arrays) -> Arrays:
        """Concatenates two adjacent ranges."""

    @abstractmethod
    def reserve(self, like: Arrays, used: int, needed: int) -> None:
        """Makes room for `needed` positions; the first `used` keep their content.

        No snapshot refers to what is behind these: `secure` comes first.
        """

    @abstractmethod
    def write(self, begin: int, end: int, arrays: Arrays) -> None: ...

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        return snapshot.first < end and begin < snapshot.end


class Ring(TokenMemory):
    """A memory with consecutive positions in consecutive slots, modulo the capacity."""

    @abstractmethod
    def reserve(self, like: Arrays, begin: int, end: int, needed: int) -> None:
        """Makes room for `needed` consecutive positions; [begin, end) are kept."""

    @abstractmethod
    def write(self, begin: int, end: int, arrays: Arrays) -> None: ...

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        """Returns whether a slot of [begin, end) is one of the snapshot's, around the
        ring."""
        ahead = (begin - snapshot.first) % self.capacity
        return (
            ahead < snapshot.end - snapshot.first or ahead + end - begin > self.capacity
        )


class Snapshot:
    """A snapshot of the content of a cache, labelled [begin, end).

    It refers to the positions [first, end) of `memory` and owns no arrays, until the
    cache is about to change that content; then it makes a copy, once.

    Attributes:
        memory: the memory that it refers to; None once it has a copy or is closed.
        arrays: its copy; None before that.
        nbytes: size of the copy, in bytes; 0 before that.
    """

    def __init__(self, memory: Memory, first: int, begin: int, end: int) -> None:
        self.first, self.begin, self.end = first, begin, end
        self.memory: Memory | None = memory
        self.arrays: Arrays | None = None
        self.nbytes = 0
        memory.named.add(self)

    @classmethod
    def owning(cls, memory: Memory, arrays: Arrays, begin: int, end: int) -> Snapshot:
        """Returns a snapshot that owns its arrays from the start."""
        snapshot = cls(memory, begin, begin, end)
        snapshot.take_over(arrays)
        return snapshot

    def read(self) -> Arrays:
        """Returns the content: a view of the cache's memory, or the snapshot's own
        arrays."""
        if self.memory is not None:
            return self.memory.read(self.first, self.end)
        if self.arrays is None:
            raise MisuseError(f"snapshot [{self.begin}, {self.end}) has been closed")
        return self.arrays

    def get_size(self) -> int:
        """Returns the size of the content in bytes, whether or not it has been copied."""
        if self.memory is None:
            return self.nbytes
        return self.memory.get_bytes(self.read())

    def own(self) -> None:
        """Copies the content out of the memory that it refers to."""
        assert self.memory is not None
        self.take_over(self.memory.copy(self.first, self.end))

    def take_over(self, arrays: Arrays) -> None:
        assert self.memory is not None
        self.nbytes = self.memory.get_bytes(arrays)
        self.memory.named.discard(self)
        self.memory.copies.add(self)
        self.memory, self.arrays = None, arrays

    def is_in(self, memory: Memory) -> bool:
        """Returns whether the content is still in `memory`, not copied."""
        return self.memory is memory

    def close(self) -> None:
        """Releases everything. A later read or a second close is an error."""
        if self.memory is None and self.arrays is None:
            raise MisuseError(f"snapshot [{self.begin}, {self.end}) was closed before")
        if self.memory is not None:
            self.memory.named.discard(self)
        self.memory = self.arrays = None
        self.nbytes = 0
