"""The recurrent state, whatever the framework."""

from __future__ import annotations

from lockstep.impl.shared.layer import WholeSnapshots
from lockstep.impl.shared.memory import Arrays, Snapshot


def check_form(held: Arrays, arrays: Arrays) -> None:
    """Raises ValueError if conv or delta are not of the shape and dtype that is held."""
    for old, new, name in zip(held, arrays, ("conv", "delta"), strict=True):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ValueError(
                f"write: {name} is {new.dtype} of shape {list(new.shape)}; this cache"
                f" holds {old.dtype} of shape {list(old.shape)}"
            )


class StateCacheBase(WholeSnapshots):
    """The convolution and delta state of a linear-recurrent layer.

    The layer reads the state, computes the next one and writes it; `boundaries` tells in
    which pieces, so that scheduled captures find the state they name.
    """

    def read(self) -> Arrays:
        """conv [1, conv_width - 1, channels] and delta [1, heads, key_dim, value_dim]."""
        return self.memory.read(0, self.offset)

    def store(self, conv: object, delta: object) -> None:
        """Puts the arrays in the place of the old ones."""
        raise NotImplementedError

    def boundaries(self, length: int) -> list[int]:
        """The lengths of the writes that the next `length` tokens must come in."""
        if length < 1:
            raise ValueError(f"boundaries: length {length} is less than 1")
        return self.captures.cut(self.offset, length)

    def write(self, conv: object, delta: object, length: int) -> None:
        """The state after `length` more tokens.

        Raises ValueError if a capture is scheduled inside them, and for arrays of
        another shape or dtype than before.
        """
        if len(self.boundaries(length)) > 1:
            at = self.offset + self.boundaries(length)[0]
            raise ValueError(
                f"write: the state at offset {at} is scheduled for capture;"
                f" write up to it first (see boundaries)"
            )
        self.memory.secure_all()
        self.store(conv, delta)
        self.advance(length)

    def view(self) -> Arrays:
        return self.read()

    def state(self) -> Arrays:
        return self.read()

    def trim(self, count: int) -> int:
        """0: what was read cannot be taken out of a sum."""
        if count < 0:
            raise ValueError(f"trim: count {count} is negative")
        return 0

    def get_snapshot(self, begin: int, end: int) -> Snapshot:
        return Snapshot(self.memory, begin, begin, end)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Whether `restore` would do it, and not refuse."""
        return target == (self.offset if snapshot is None else snapshot.end)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Only the live offset, or exactly the end of the snapshot, can be reached."""
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and not snapshot.is_in(self.memory):
            arrays = snapshot.read()
            self.memory.secure_all()
            self.store(*arrays)
        self.offset = target
        return True
