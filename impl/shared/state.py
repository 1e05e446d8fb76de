"""The recurrent state for any framework."""

from __future__ import annotations

from abc import abstractmethod

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import WholeSnapshots
from lockstep.impl.shared.memory import Arrays, Snapshot


def check_form(stored: Arrays, arrays: Arrays) -> None:
    """Raises MisuseError if conv or delta differ in shape or dtype from stored arrays."""
    for old, new, name in zip(stored, arrays, ("conv", "delta"), strict=True):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise MisuseError(
                f"write: {name} is {new.dtype} of shape {list(new.shape)}, but must be"
                f" {old.dtype} of shape {list(old.shape)}, as in this cache"
            )


class StateCacheBase(WholeSnapshots):
    """The convolution and delta state of a linear-recurrent layer.

    The layer reads the state, computes the next state, and writes it. `boundaries`
    returns the lengths of these writes, so that a write ends at each scheduled capture.
    """

    def read(self) -> Arrays:
        """Returns conv [1, conv_width - 1, channels] and delta [1, heads, key_dim,
        value_dim]."""
        return self.memory.read(0, self.offset)

    @abstractmethod
    def store(self, conv: object, delta: object) -> None:
        """Overwrites the stored arrays."""

    def boundaries(self, length: int) -> list[int]:
        """Returns the lengths of the writes that add the next `length` tokens."""
        if length < 1:
            raise MisuseError(f"boundaries: length must be at least 1, not {length}")
        return self.captures.cut(self.offset, length)

    def write(self, conv: object, delta: object, length: int) -> None:
        """Stores the state after `length` more tokens.

        Raises:
            MisuseError: a capture is scheduled inside these tokens, or an array has
                another shape or dtype than the stored array.
        """
        if len(self.boundaries(length)) > 1:
            at = self.offset + self.boundaries(length)[0]
            raise MisuseError(
                f"write: a capture is prepared at offset {at}; end a write there"
                " (`boundaries` returns the lengths of the writes)"
            )
        check_form(self.read(), (conv, delta))
        self.capture(self.offset, self.offset)
        self.memory.secure_all()
        self.store(conv, delta)
        self.offset += length
        self.capture(self.offset - length + 1, self.offset)

    def view(self) -> Arrays:
        return self.read()

    def state(self) -> Arrays:
        return self.read()

    def trim(self, count: int) -> int:
        """Returns 0, because tokens cannot be removed from a state."""
        if count < 0:
            raise MisuseError(f"trim: count {count} is negative")
        return 0

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, begin, begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Returns whether `restore` with these arguments would succeed."""
        return target == (self.offset if snapshot is None else snapshot.end)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: replaces the state; None to keep the present state.
            target: the end of the snapshot; without a snapshot, the present offset.

        Returns:
            False if the cache refuses; then nothing changes.
        """
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and not snapshot.is_in(self.memory):
            arrays = snapshot.read()
            check_form(self.read(), arrays)
            self.memory.secure_all()
            self.store(*arrays)
        self.offset = target
        return True
