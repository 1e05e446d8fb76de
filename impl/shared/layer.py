"""The base classes of all layer caches: updates, snapshots and captures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from lockstep.impl.shared.captures import Captures
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.memory import Arrays, Memory, Run, Snapshot, TokenMemory


class LayerCache(ABC):
    """A cache of one sequence in one layer.

    Attributes:
        memory: the arrays.
        can_split: whether a snapshot can restore any offset in it, not only its end.
        offset: the number of written tokens minus the number of trimmed tokens.
        captures: the scheduled snapshots.
    """

    memory: Memory
    can_split = False

    def __init__(self) -> None:
        self.offset = 0
        self.captures = Captures(whole=not self.can_split)

    @abstractmethod
    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        """Returns a snapshot of [begin, end), just after a write has reached `end`."""

    @abstractmethod
    def clone(self) -> Self:
        """Returns an independent cache with the same content and without scheduled
        captures."""

    def free(self) -> None:
        """Empties the cache, and removes its scheduled captures. Earlier snapshots stay
        valid."""
        self.memory.secure_all()
        self.memory.clear()
        self.captures.drop()
        self.offset = 0

    def snapshot(self, begin: int) -> Snapshot | None:
        """Returns a snapshot of [begin, offset), which copies nothing yet; None if it is
        empty."""
        begin = max(0, begin)
        return self.get_snapshot(begin, self.offset) if begin < self.offset else None

    def held(self) -> dict[str, int]:
        """Counts the memory of the cache and its snapshots; see `Memory.held`."""
        return self.memory.held()

    def close(self, snapshot: Snapshot) -> None:
        """Releases a snapshot."""
        snapshot.close()

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures; see `Captures.prepare`."""
        self.captures.prepare(offsets, self.offset)

    def take(self) -> list[Snapshot | None]:
        """Returns the captures that `prepare` scheduled; None for an offset that was not
        reached."""
        return self.captures.take()

    def capture(self, first: int, last: int) -> None:
        """Makes the scheduled captures at the offsets [first, last], except at
        offset 0."""
        if self.captures.boundaries:
            self.captures.reach(max(1, first), last, self.get_snapshot)


class Form:
    """Checks the shapes and dtypes of K and V before a write.

    Attributes:
        form: batch, heads, dimensions and dtypes of the arrays; None before the first
            write.
        accepted: shapes and dtypes of the last arrays that `accept` checked.
    """

    def __init__(self) -> None:
        self.form: tuple[Any, ...] | None = None
        self.accepted: tuple[Any, ...] | None = None

    def accept(self, arrays: Arrays) -> None:
        """Checks the shapes and dtypes of K and V before a write.

        Without this check, a write would broadcast arrays of a wrong shape. Arrays with
        the shapes and dtypes of the last checked arrays are not checked again.

        Raises:
            MisuseError: K and V do not match each other or the stored arrays.
        """
        keys, values = arrays
        looks = keys.shape, values.shape, keys.dtype, values.dtype
        if self.form is not None and looks == self.accepted:
            return
        if len(keys.shape) != 4 or len(values.shape) != 4:
            raise MisuseError(
                f"K has shape {list(keys.shape)} and V {list(values.shape)}, but both"
                " must have [batch, heads, tokens, dim]"
            )
        if keys.shape[:3] != values.shape[:3]:
            raise MisuseError(
                f"K has shape {list(keys.shape)} and V {list(values.shape)}, but batch,"
                " heads and length must be equal"
            )
        form = (*keys.shape[:2], keys.shape[3], values.shape[3], keys.dtype, values.dtype)
        if self.form is None:
            self.form = form
        elif form != self.form:
            raise MisuseError(
                f"batch, heads, key_dim, value_dim and dtypes are {list(form)}, but"
                f" must be {list(self.form)}, as in the first update"
            )
        self.accepted = looks


class TokenCache(LayerCache, Form):
    """K and V of one sequence in one layer.

    An update has three steps: the cache determines the positions, a planner (`Linear` or
    `Ring`) determines the columns of these positions, and the memory of the framework
    moves the arrays.

    Args:
        memory: the arrays, with the planner.
        window: number of tokens that a query sees, including itself; None for all tokens.
        mask: the dtype of masks; on torch, a tensor with their dtype and device.
    """

    memory: TokenMemory

    def __init__(self, memory: TokenMemory, window: int | None, mask: Any) -> None:
        LayerCache.__init__(self)
        Form.__init__(self)
        self.memory, self.window, self.mask = memory, window, mask

    @abstractmethod
    def make_empty(self) -> Self:
        """Returns an empty cache with the same options."""

    def make_mask(self, length: int, rows: int) -> Any:
        """Returns the mask of the next update; None if every row sees every column.

        Args:
            length: number of tokens of the update.
            rows: number of rows of the mask; rows from number `length` on are padding.

        Returns:
            [rows, columns]; the columns are the old tokens that the update returns, then
            the new tokens. On MLX, "causal" if it is equivalent.
        """
        if length == rows == 1:
            return None
        old = self.count_before(length)
        return self.memory.make_mask(length, rows, old, self.window, self.mask)

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [1, heads, length, key_dim] and V.

        Returns:
            K and V of all old tokens that the first new token sees, and of all new
            tokens, in order of position. Exception: the columns of a full window may be
            in any order.
        """
        begin = self.offset
        end = begin + keys.shape[2]
        if self.captures.boundaries and not self.can_split:
            self.accept((keys, values))  # before anything is captured
            self.capture(begin, begin)
        first = 0 if self.window is None else begin - self.count_before(end - begin)
        returned = self.store(first, begin, end, (keys, values))
        self.offset = end
        if self.captures.boundaries:
            self.capture(begin + 1, end)
        return returned

    def store(self, first: int, begin: int, end: int, arrays: Arrays) -> Arrays:
        """Writes the positions [begin, end), and keeps only the positions from `first`
        on.

        Returns:
            K and V of the positions [first, end), in the form of `update`.
        """
        self.accept(arrays)
        memory = self.memory
        if memory.named:
            memory.secure(first, begin, end)
        return memory.carry_out(memory.columns.plan(first, begin, end), arrays)

    def count_before(self, length: int) -> int:
        """Returns how many old tokens an update of `length` tokens returns: all old
        tokens that the first new token sees."""
        return self.offset if self.window is None else min(self.offset, self.window - 1)

    def get_first(self, offset: int) -> int:
        """Returns the first stored position of a cache at `offset`."""
        return 0 if self.window is None else max(0, offset - self.window)

    def view(self) -> Arrays | None:
        """Returns K and V of the stored tokens, in order of position; None if there are
        none."""
        if not self.offset:
            return None
        return self.memory.read(self.get_first(self.offset), self.offset)

    def state(self) -> Arrays | None:
        """Returns the same as `view`, because these caches have no other state."""
        return self.view()

    def size(self) -> int:
        """Returns the number of stored tokens."""
        return self.offset - self.get_first(self.offset)

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer.

        Removes no token if the window has dropped a token, because the earlier window
        would need the dropped tokens.

        Returns:
            The number of removed tokens.
        """
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        trimmed = 0 if self.get_first(self.offset) else min(count, self.offset)
        self.offset -= trimmed
        return trimmed

    def clone(self) -> Self:
        """Returns an independent cache with the same tokens. On MLX, both caches share
        the memory until one of them writes."""
        copied = self.make_empty()
        if self.offset:
            copied.form, copied.offset = self.form, self.offset
            copied.memory.share(self.memory, self.get_first(self.offset), self.offset)
        return copied

    def adopt(self, arrays: Arrays, runs: Sequence[Run], offset: int) -> None:
        """Fills an empty cache with a copy of the tokens of a row; see
        `TokenMemory.adopt`.

        Args:
            offset: the number of tokens that were written to the row.
        """
        self.accept(arrays)
        self.memory.adopt(arrays, runs)
        self.offset = offset

    def free(self) -> None:
        super().free()
        self.form = None


class WholeSnapshots(LayerCache):
    """Split and merge for kinds whose snapshots always have the whole content.

    The later of two snapshots has all content that a restore needs, so a merge keeps just
    this snapshot.
    """

    def split(self, snapshot: Snapshot, at: int) -> tuple[None, Snapshot]:
        """Returns None and the whole snapshot, whatever the offset."""
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Closes the parent and returns the child."""
        if parent is not None:
            parent.close()
        return child
