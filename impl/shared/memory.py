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

    def count_bytes(self, begin: int, end: int) -> int:
        """Returns the size of the positions [begin, end)."""
        return self.get_bytes(self.read(begin, end))

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

    Args:
        step: see `compute_capacity`.

    Attributes:
        buffers: K and V, as the framework holds them; None before the first write.
        capacity: number of positions that there is room for.
    """

    buffers: Any

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.buffers = None
        self.capacity = 0

    def clear(self) -> None:
        self.buffers, self.capacity, self.form = None, 0, None

    @abstractmethod
    def adopt(self, columns: Arrays, parts: Sequence[Part]) -> None:
        """Begins with a copy of the tokens of a row, and makes room for the next one.

        Args:
            columns: K and V of all columns of the row.
            parts: where its tokens are, in order; more than one only for a ring.
        """

    @abstractmethod
    def find_columns(self, begin: int, end: int) -> list[Part]:
        """Returns where [begin, end) are, in order of position."""

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
    def write(self, begin: int, end: int, arrays: Arrays) -> None:
        """Writes K and V [1, heads, end - begin, dim], or what `select` returns."""

    def select(self, arrays: Arrays, count: int) -> Arrays:
        """Returns the first `count` tokens of arrays, for `write`."""
        return arrays[0][:, :, :count], arrays[1][:, :, :count]

    def find_columns(self, begin: int, end: int) -> list[Part]:
        return [(begin, begin, end)]

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        return snapshot.first < end and begin < snapshot.end


class Ring(TokenMemory):
    """Position p in column (p - base) mod capacity of buffers with `room` columns.

    A ring of `window` columns is read as it is, in any order, by the token that completes
    a full window: a step moves only its own tokens. Several tokens need a window in order
    of position. So where these would go around the ring, it is laid out anew with a twin
    behind it, and from then on a write goes to both: any `capacity` positions are one
    slice. What is laid out is not written to the twin: it begins in column 0, and a slice
    from there on reaches the twins only of what was written since. A step that is back in
    column 0 drops the twin.

    Args:
        window: number of tokens that are kept. There are no more columns than that as
            long as they are enough.
        step: see `compute_capacity`.
        twin: whether the ring may get a twin. If not, several tokens that go around it
            lay it out anew each time: they copy the window.

    Attributes:
        base: position in column 0, unless the ring has turned since.
        room: number of columns, those of the twin included.
    """

    def __init__(self, window: int, step: int, twin: bool) -> None:
        super().__init__(step)
        self.window, self.twin = window, twin
        self.base = self.room = 0

    @abstractmethod
    def lay_out(self, like: Arrays, begin: int, end: int, room: int) -> Any:
        """Returns buffers of so many columns, of which the first hold [begin, end).

        Args:
            like: has the form of the buffers, if there are none yet.
            begin, end: positions; equal if none is kept.
            room: number of columns.
        """

    @abstractmethod
    def write(self, begin: int, end: int, arrays: Arrays) -> None:
        """Writes at most `capacity` positions to the ring, and to its twin if it has
        one."""

    @abstractmethod
    def read_all(self) -> Arrays:
        """Returns all columns."""

    def read_window(self, begin: int, end: int) -> Arrays:
        """Returns [begin, end) as a view: in order, or all columns in any order."""
        return self.read_all() if end - begin == self.room else self.read(begin, end)

    def get_column(self, position: int) -> int:
        return (position - self.base) % self.capacity

    def reserve(self, like: Arrays, begin: int, end: int, needed: int) -> None:
        """Makes room for `needed` consecutive positions; [begin, end) are kept."""
        self.accept(like)
        if self.fits(begin, end, needed):
            return
        self.secure_all()
        if begin < end or needed > self.capacity:
            self.grow(like, begin, end, needed)
        self.base = begin

    def fits(self, begin: int, end: int, needed: int) -> bool:
        """Returns whether positions can be written, and then read by `read_window`."""
        is_step = needed == self.window == end - begin + 1
        if is_step and needed == self.room:
            return True
        if needed > self.capacity:
            return False
        column = self.get_column(begin)
        if is_step and column == 0 and self.room > self.capacity:
            return False
        return column + needed <= self.room

    def grow(self, like: Arrays, begin: int, end: int, needed: int) -> None:
        """Makes other buffers; see `reserve`."""
        capacity = compute_capacity(self.capacity, needed, self.step, self.window)
        if needed <= self.window:
            capacity = min(capacity, self.window)
        has_twin = self.twin and begin > 0 and needed > self.window
        room = 2 * capacity if has_twin else capacity
        self.buffers = self.lay_out(like, begin, end, room)
        self.capacity, self.room = capacity, room

    def find_columns(self, begin: int, end: int) -> list[Part]:
        column = self.get_column(begin)
        stop = column + end - begin
        if stop <= self.room:
            return [(begin, column, stop)]
        return [
            (begin, column, self.room),
            (begin + self.room - column, 0, stop - self.room),
        ]

    def find_targets(self, begin: int, end: int) -> list[Part]:
        """Returns the columns to which [begin, end) are written; some positions have two.

        At the end of the ring the first slice continues into the twin.
        """
        parts = self.find_columns(begin, end)
        if self.room == self.capacity:
            return parts
        column = self.get_column(begin)
        fits = min(end - begin, self.capacity - column)
        parts.append((begin, column + self.capacity, column + self.capacity + fits))
        if begin + fits < end:
            parts.append((begin + fits, 0, end - begin - fits))
        return parts

    def count_bytes(self, begin: int, end: int) -> int:
        held = sum(array.nbytes for array in self.list_arrays())
        return held // self.room * (end - begin)

    def touches(self, snapshot: Snapshot, begin: int, end: int) -> bool:
        """Returns whether a column of [begin, end) is one of the snapshot's, around the
        ring."""
        ahead = (begin - snapshot.first) % self.capacity
        return (
            ahead < snapshot.end - snapshot.first or ahead + end - begin > self.capacity
        )

    def clear(self) -> None:
        super().clear()
        self.base = self.room = 0


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

    def read_first(self, end: int) -> Arrays:
        """Returns the content up to `end`, or all of it."""
        if self.memory is None:
            return self.read()
        return self.memory.read(self.first, end)

    def get_size(self) -> int:
        """Returns the size of the content in bytes, whether or not it has been copied."""
        if self.memory is None:
            return self.nbytes
        return self.memory.count_bytes(self.first, self.end)

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
