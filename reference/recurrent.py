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


def get_place(read: Sequence[Token]) -> int:
    """Returns the position of a state that has read these tokens: the highest of their
    positions, in whatever order they came; -1 for no tokens."""
    return max([token.position for token in read], default=-1)


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

    def list_refusals(self, batch: Batch, reserve: bool) -> list[Exception]:
        """Returns NotSupported if the sequences of the batch differ in their number of
        rows, even to reserve; CacheFull if there is no room for tokens or states."""
        owners = set(batch.sequences)
        lengths = {len(batch.get_positions(sequence)) for sequence in owners}
        slots_of_others = {
            slot for sequence, slot in self.slots.items() if sequence not in owners
        }
        reasons = super().list_refusals(batch, reserve)
        if not reserve and len(owners) + len(slots_of_others) > self.slot_count:
            reasons = [
                CacheFull(f"{len(owners)} states beside {len(slots_of_others)} others")
            ]
        if len(lengths) > 1:
            message = f"sequences with {sorted(lengths)} rows in one batch"
            reasons = [NotSupported(message), *reasons]
        return reasons

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
        places = [get_place(checkpoint) for checkpoint in slot.checkpoints]
        last = places[-1] if places else -self.interval
        if get_place(slot.read) - last >= self.interval:
            slot.checkpoints.append(list(slot.read))
            slot.checkpoints = slot.checkpoints[-self.checkpoint_count :]

    def list_sequences(self, batch: Batch) -> list[int]:
        """Returns the sequences of a batch, in the order of their first rows."""
        return list(dict.fromkeys(batch.sequences))

    def is_shared(self, sequence: int) -> bool:
        slot = self.slots.get(sequence)
        slots_of_others = [
            other_slot for owner, other_slot in self.slots.items() if owner != sequence
        ]
        return slot is not None and slot in slots_of_others

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
        found_at = get_place(self.get_read(sequence))
        if found_at >= stop:
            raise NotSupported("a state cannot forget what came before its end")
        cut = found_at >= begin
        earlier = [
            checkpoint
            for checkpoint in self.slots.get(sequence, Slot()).checkpoints
            if get_place(checkpoint) < begin
        ]
        stands = bool(earlier) and get_place(earlier[-1]) == begin - 1
        if cut and begin > 0 and not stands:
            raise NotSupported(f"there is no checkpoint at position {begin - 1}")
        full = len(set(self.slots.values())) >= self.slot_count
        if cut and begin > 0 and full and self.is_shared(sequence):
            raise CacheFull("the state is shared, and there is no room for another")
        super().remove(sequence, begin, end)
        if begin == 0:
            self.slots.pop(sequence, None)
        elif cut:
            self.slots[sequence] = Slot(earlier[-1], earlier)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether the state or a checkpoint stands just before `position`, and
        the tokens are there that a pass from it on sees."""
        if not super().can_resume(sequence, position):
            return False
        slot = self.slots.get(sequence, Slot())
        places = [get_place(read) for read in (slot.read, *slot.checkpoints)]
        return position == 0 or position - 1 in places
