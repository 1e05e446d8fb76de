"""A causal cache that also has one recurrent state for each sequence. A state cannot be
cut."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import inf
from typing import Any

from .batch import Batch, check_range
from .causal import CausalCache
from .errors import CacheFull, NotSupported
from .token import Token


class Slot:
    """A state and its checkpoints, which several sequences may share.

    Args:
        read: the tokens that the state has read, in order.
        checkpoints: for each checkpoint, the tokens that the state had read when the
            checkpoint was made.
    """

    def __init__(
        self, read: Sequence[Token] = (), checkpoints: Sequence[Sequence[Token]] = ()
    ) -> None:
        self.read = list(read)
        self.checkpoints = [list(checkpoint) for checkpoint in checkpoints]

    def copy(self) -> Slot:
        return Slot(self.read, self.checkpoints)


def get_place(read: Sequence[Token]) -> int:
    """Returns the position of a state that has read these tokens: their highest position,
    in any order; -1 for no tokens.
    """
    return max([token.position for token in read], default=-1)


class RecurrentCache(CausalCache):
    """The causal cache of `reference.causal`, with one state per sequence.

    The state has read all tokens of its sequence, whatever the window and the memory of
    the cache. Two sequences share a copied state until one of them adds tokens.

    Args:
        sequences, capacity, batch, padding, shift, window, memory: as in `CausalCache`.
        slots: maximum number of states; 0 or None for one state per sequence.
        interval: after a pass, the cache makes a checkpoint of a state if the last
            checkpoint is at least this number of positions back; 0 or None for never.
        checkpoints: number of latest checkpoints kept of each state.
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
        """Returns the errors with which the cache may refuse the batch.

        NotSupported: the sequences of the batch have different numbers of rows; this also
        holds with `reserve`. CacheFull: there is no room for the tokens or the states.
        """
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
        """Makes a checkpoint if the last checkpoint is `interval` or more positions back.

        Without an earlier checkpoint, the position of the state must be at least 0.
        """
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
        """Returns the tokens that a sequence's state has read; none without a state."""
        return self.slots.get(sequence, Slot()).read

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies the tokens as in `CausalCache`, and shares the whole state.

        The state is shared whatever `length` is.
        """
        super().copy_prefix(source, target, length)
        self.slots.pop(target, None)
        if source in self.slots:
            self.slots[target] = self.slots[source]

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the end of a sequence; see `CausalCache.remove`.

        If the state has read tokens from `begin` on, it goes back to the checkpoint at
        begin - 1, or is removed if `begin` is 0, and is no longer shared with another
        sequence. Nothing changes if the cache refuses.

        Raises:
            NotSupported: the state has read a token at `end` or later, or it would have
                to go back and has no checkpoint at begin - 1.
            CacheFull: the state is shared, and there is no room for another state.
            Shared: as in `CausalCache`.
        """
        check_range(sequence, begin, end, self.sequences)
        stop = inf if end is None else end
        found_at = get_place(self.get_read(sequence))
        if found_at >= stop:
            raise NotSupported("a state can lose only its last tokens")
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

    def save(self) -> Any:
        """Returns the tokens, the states and their checkpoints; shared states stay
        shared."""
        return super().save(), deepcopy(self.slots)

    def load(self, saved: Any) -> None:
        tokens, slots = saved
        super().load(tokens)
        self.slots = deepcopy(slots)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether a pass can begin at `position`.

        The state or a checkpoint must be at position - 1, except for position 0, and the
        tokens that the pass sees must be stored.
        """
        if not super().can_resume(sequence, position):
            return False
        slot = self.slots.get(sequence, Slot())
        places = [get_place(read) for read in (slot.read, *slot.checkpoints)]
        return position == 0 or position - 1 in places
