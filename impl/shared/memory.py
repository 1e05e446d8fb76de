"""The memory of a cache, and snapshots. A snapshot copies its content when the memory is
about to change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self
from weakref import WeakSet, ref

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.linear import Linear, Plan, Run
from lockstep.impl.shared.ring import Ring

Arrays = tuple[Any, Any]
"""A pair of arrays: K and V, or conv and delta of a recurrent state."""


class Memory(ABC):
    """The arrays of one cache, addressed by token position.

    A snapshot refers to positions in the memory. Before a write changes these positions,
    the snapshot copies them.

    Attributes:
        buffers: the arrays, as the framework holds them; None before the first write.
        named: the snapshots that refer to this memory. This is a plain set, because each
            step checks whether it is empty, and this check takes longer with a WeakSet.
        copies: the snapshots that have copied positions of this memory.
    """

    buffers: Any

    def __init__(self) -> None:
        self.named: set[ref[Snapshot]] = set()
        self.copies: WeakSet[Snapshot] = WeakSet()

    @abstractmethod
    def read(self, begin: int, end: int) -> Arrays:
        """Returns the content of the positions [begin, end), as a view if possible."""

    @abstractmethod
    def copy(self, begin: int, end: int) -> Arrays:
        """Returns a copy of [begin, end), which keeps no larger memory alive."""

    @abstractmethod
    def clear(self) -> None:
        """Frees the arrays, or fills them with their initial content."""

    def get_bytes(self, arrays: Arrays) -> int:
        return int(arrays[0].nbytes + arrays[1].nbytes)

    def count_bytes(self, begin: int, end: int) -> int:
        """Returns the size of the positions [begin, end)."""
        return self.get_bytes(self.read(begin, end))

    def list_arrays(self) -> Sequence[Any]:
        """Lists the arrays that hold the content."""
        return self.buffers or ()

    def held(self) -> dict[str, int]:
        """Counts the bytes of the arrays and of the snapshots' copies, and the number of
        open snapshots."""
        copies = [snapshot for snapshot in self.copies if snapshot.arrays is not None]
        size = sum(array.nbytes for array in self.list_arrays())
        size += sum(snapshot.nbytes for snapshot in copies)
        return {"bytes": size, "snapshots": len(self.named) + len(copies)}

    def secure_all(self) -> None:
        """Lets all snapshots copy their content, before the whole memory changes."""
        for snapshot in self.list_named():
            snapshot.own()

    def list_named(self) -> list[Snapshot]:
        """Lists the snapshots that refer to this memory."""
        snapshots = [name() for name in list(self.named)]
        return [snapshot for snapshot in snapshots if snapshot is not None]


class TokenMemory(Memory):
    """K and V of tokens in two buffers [1, heads, room, dim]; a planner chooses the
    columns.

    Args:
        columns: the planner. It is immutable; each update replaces it.
        fill: the initial content of the buffers.
    """

    def __init__(self, columns: Linear | Ring, fill: Any) -> None:
        super().__init__()
        self.columns, self.fill, self.buffers = columns, fill, None

    @abstractmethod
    def carry_out(self, plan: Plan, arrays: Arrays) -> Arrays:
        """Carries out a plan for K and V [1, heads, length, dim].

        Tokens that the plan does not write are ignored.

        Returns:
            K and V of the columns that the plan returns.
        """

    @abstractmethod
    def view(self, runs: Sequence[Run]) -> Arrays:
        """Returns K and V of some columns; a view if the columns are consecutive."""

    @abstractmethod
    def copy_runs(self, arrays: Arrays, runs: Sequence[Run]) -> Arrays:
        """Returns a copy of columns of the arrays, which keeps no larger memory alive."""

    @abstractmethod
    def join(self, pieces: Sequence[Arrays]) -> Arrays:
        """Concatenates K and V of all pieces."""

    @abstractmethod
    def share(self, source: Self, first: int, end: int) -> None:
        """Takes over the positions [first, end) of another memory, which must
        not change."""

    @abstractmethod
    def make_mask(
        self, length: int, rows: int, old: int, window: int | None, like: Any
    ) -> Any:
        """Returns the mask of an update; see `TokenCache.make_mask`.

        Args:
            length, rows: number of tokens, and number of rows of the mask.
            old: number of old tokens.
            window: number of tokens that a row sees, including itself; None for all
                tokens.
            like: the dtype of the mask; on torch, an array with its dtype and device.
        """

    def read(self, begin: int, end: int) -> Arrays:
        return self.view(self.columns.find(begin, end))

    def copy(self, begin: int, end: int) -> Arrays:
        keys, values = self.list_arrays()
        return self.copy_runs((keys, values), self.columns.find(begin, end))

    def secure(self, first: int, begin: int, end: int) -> None:
        """Lets the snapshots that an update would change copy their content.

        For the arguments, see `TokenCache.store`.
        """
        for snapshot in self.list_named():
            if self.touches(snapshot, first, begin, end):
                snapshot.own()

    def touches(self, snapshot: Snapshot, first: int, begin: int, end: int) -> bool:
        """Returns whether an update changes positions that `snapshot` refers to."""
        return self.columns.destroys(snapshot.first, snapshot.end, first, begin, end)

    def adopt(self, arrays: Arrays, runs: Sequence[Run]) -> None:
        """Fills the memory with a copy of the tokens of a row, with space for one more
        token.

        Args:
            arrays: K and V of all columns of the row.
            runs: the columns of its tokens, by position.
        """
        first, count, written = runs[0][0], 0, []
        for _, begin, end in runs:
            written.append((begin, count, count + end - begin))
            count += end - begin
        end = first + self.columns.count_with_spare(count)
        columns, copied, _, _ = self.columns.plan(first, first, end)
        self.carry_out((columns, copied, written, ((0, 0, count),)), arrays)

    def count_bytes(self, begin: int, end: int) -> int:
        total = sum(array.nbytes for array in self.list_arrays())
        return total // self.columns.room * (end - begin)

    def clear(self) -> None:
        self.buffers, self.columns = None, self.columns.clear()


class Snapshot:
    """A snapshot of the content of a cache, labelled [begin, end).

    The snapshot refers to the positions [first, end) of `memory`, and has no arrays at
    first. Before the cache changes these positions, the snapshot copies them once.

    Attributes:
        memory: the memory that the snapshot refers to; None after the copy, or when the
            snapshot is closed.
        arrays: the copy; None before it is made.
        nbytes: size of the copy in bytes; 0 before it is made.
    """

    def __init__(self, memory: Memory, first: int, begin: int, end: int) -> None:
        self.first, self.begin, self.end = first, begin, end
        self.memory: Memory | None = memory
        self.arrays: Arrays | None = None
        self.nbytes = 0
        memory.named.add(ref(self, memory.named.discard))

    @classmethod
    def owning(cls, memory: Memory, arrays: Arrays, begin: int, end: int) -> Snapshot:
        """Returns a snapshot that has its own arrays from the beginning."""
        snapshot = cls(memory, begin, begin, end)
        snapshot.take_over(arrays)
        return snapshot

    def read(self) -> Arrays:
        """Returns the content: a view of the cache's memory, or the copied arrays."""
        if self.memory is not None:
            return self.memory.read(self.first, self.end)
        if self.arrays is None:
            raise MisuseError(
                f"snapshot [{self.begin}, {self.end}) cannot be read: it has been closed"
            )
        return self.arrays

    def read_first(self, end: int) -> Arrays:
        """Returns the content up to position `end`, or the whole content if it is
        shorter."""
        if self.memory is None:
            return self.read()
        return self.memory.read(self.first, end)

    def get_size(self) -> int:
        """Returns the size of the content in bytes, even if it has not been copied."""
        if self.memory is None:
            return self.nbytes
        return self.memory.count_bytes(self.first, self.end)

    def own(self) -> None:
        """Copies the content from the memory, so that the snapshot no longer refers to
        it."""
        assert self.memory is not None
        self.take_over(self.memory.copy(self.first, self.end))

    def take_over(self, arrays: Arrays) -> None:
        assert self.memory is not None
        self.nbytes = self.memory.get_bytes(arrays)
        self.memory.named.discard(ref(self))
        self.memory.copies.add(self)
        self.memory, self.arrays = None, arrays

    def is_in(self, memory: Memory) -> bool:
        """Returns whether the snapshot still refers to `memory`."""
        return self.memory is memory

    def close(self) -> None:
        """Releases the memory or the copy. A later read or a second close is an error."""
        if self.memory is None and self.arrays is None:
            raise MisuseError(
                f"snapshot [{self.begin}, {self.end}) has been closed already; close it"
                " only once"
            )
        if self.memory is not None:
            self.memory.named.discard(ref(self))
        self.memory = self.arrays = None
        self.nbytes = 0
