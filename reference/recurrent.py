"""A causal cache whose sequences also have a recurrent state, which cannot be cut."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from .batch import Batch, check_range
from .causal import CausalCache
from .errors import CacheFull, NotSupported
from .token import Token


class Slot:
    """A state and its checkpoints, which several sequences may share.

    Args:
        read: the tokens that the state has read, in order.
        checkpoints: for each checkpoint the tokens that the state had read then.
    """

    def __init__(
        self, read: Sequence[Token] = (), checkpoints: Sequence[Sequence[Token]] = ()
    ) -> None:
        self.read = list(read)
        self.checkpoints = [list(checkpoint) for checkpoint in checkpoints]

    def copy(self) -> Slot:
        return Slot(self.read, self.checkpoints)


class RecurrentCache(CausalCache):
    """The causal cache of `reference.causal`, and one state per sequence, which has read
    everything, whatever the window and the memory of the cache.

    A copied prefix shares the state until one of the two sequences goes on.

    Args:
        sequences, capacity, batch, padding, shift, window, memory: as in `CausalCache`.
        slots: number of states that there is room for; 0 or None for one per sequence.
        interval: after a pass the cache makes a checkpoint of a state if the last one is
            at least so many positions back; 0 or None for never.
        checkpoints: how many are kept of each state, the latest.
    """

    def __init__(
        self,
        sequences: int,
        capacity: int,
        batch: int,
        slots: int | None = None,
        interval: int | None = None,
        checkpoints: int = 1,
        padding: int = 1,
        shift: bool = True,
        window: int | None = None,
        memory: int | None = None,
    ) -> None:
        sizes = sequences, capacity, batch
        super().__init__(*sizes, window, memory, padding=padding, shift=shift)
        self.slot_count = slots or sequences
        self.interval, self.checkpoint_count = interval, checkpoints
        self.slots: dict[int, Slot] = {}

    def get_refusal(self, batch: Batch) -> CacheFull | NotSupported | None:
        """Returns NotSupported if the sequences of the batch differ in their number of
        rows, CacheFull if there is no room for the tokens or the states, else None."""
        own = set(batch.sequences)
        lengths = {len(batch.get_positions(sequence)) for sequence in own}
        if len(lengths) > 1:
            return NotSupported(f"sequences with {sorted(lengths)} rows in one batch")
        others = {slot for sequence, slot in self.slots.items() if sequence not in own}
        if len(own) + len(others) > self.slot_count:
            return CacheFull(f"{len(own)} states, and {len(others)} others are kept")
        return super().get_refusal(batch)

    def add(self, batch: Batch, tags: Sequence[int]) -> None:
        super().add(batch, tags)
        for sequence in self.list_sequences(batch):
            slot = self.slots.get(sequence, Slot())
            if self.is_shared(sequence):
                slot = slot.copy()
            self.slots[sequence] = slot
            rows = zip(tags, batch.positions, batch.sequences, strict=True)
            slot.read += [Token(tag, at) for tag, at, owner in rows if owner == sequence]
            self.put_checkpoint(slot)

    def put_checkpoint(self, slot: Slot) -> None:
        """Makes a checkpoint if the last one lies far enough back."""
        if not self.interval:
            return
        position = slot.read[-1].position
        last = slot.checkpoints[-1][-1].position if slot.checkpoints else -self.interval
        if position - last >= self.interval:
            slot.checkpoints.append(list(slot.read))
            slot.checkpoints = slot.checkpoints[-self.checkpoint_count :]

    def list_sequences(self, batch: Batch) -> list[int]:
        """Returns the sequences of a batch, in the order of their first rows."""
        return list(dict.fromkeys(batch.sequences))

    def is_shared(self, sequence: int) -> bool:
        slot = self.slots.get(sequence)
        others = [other for owner, other in self.slots.items() if owner != sequence]
        return slot is not None and slot in others

    def get_read(self, sequence: int) -> list[Token]:
        """Returns the tokens that the state of a sequence has read, none at first."""
        return self.slots.get(sequence, Slot()).read

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies as a causal cache, and shares the whole state whatever the length."""
        super().copy_prefix(source, target, length)
        self.slots.pop(target, None)
        if source in self.slots:
            self.slots[target] = self.slots[source]

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the end of a sequence; see `CausalCache.remove`.

        The state goes back to the checkpoint just before `begin`, and is no longer shared
        with another sequence. Nothing changes if the cache refuses.

        Raises:
            NotSupported: the state has read something behind the end, or it would have to
                go back and has no checkpoint at begin - 1.
            CacheFull: the state is shared, and there is no room for another one.
            Shared: as in a causal cache.
        """
        check_range(sequence, begin, end, self.sequences)
        stop = inf if end is None else end
        read = [token.position for token in self.get_read(sequence)]
        if any(position >= stop for position in read):
            raise NotSupported("a state cannot forget what came before its end")
        cut = any(position >= begin for position in read)
        kept = [
            checkpoint
            for checkpoint in self.slots.get(sequence, Slot()).checkpoints
            if all(token.position < begin for token in checkpoint)
        ]
        stands = bool(kept) and kept[-1][-1].position == begin - 1
        if cut and begin > 0 and not stands:
            raise NotSupported(f"there is no checkpoint at position {begin - 1}")
        full = len(set(self.slots.values())) >= self.slot_count
        if cut and begin > 0 and full and self.is_shared(sequence):
            raise CacheFull("the state is shared, and there is no room for another")
        super().remove(sequence, begin, end)
        if begin == 0:
            self.slots.pop(sequence, None)
        elif cut:
            self.slots[sequence] = Slot(kept[-1], kept)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether the state or a checkpoint stands just before `position`, and
        the tokens are there that a pass from it on sees."""
        if not super().can_resume(sequence, position):
            return False
        slot = self.slots.get(sequence, Slot())
        states = [state for state in (slot.read, *slot.checkpoints) if state]
        return position == 0 or any(
            state[-1].position == position - 1
            and all(token.position < position for token in state)
            for state in states
        )
