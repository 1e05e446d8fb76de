"""Assigns slots to the recurrent states of sequences, and keeps checkpoints of the
states.

Sequences share a slot until one of them adds tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lockstep.impl.shared.errors import CacheFullError


@dataclass
class Checkpoint:
    """The states of all layers at one time.

    Attributes:
        position: the highest position that the states had read.
        arrays: the states by layer, which are added when the layers are written.
    """

    position: int
    arrays: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Slot:
    """One state in the buffers of every layer.

    Attributes:
        index: its index in the buffers.
        position: highest position read; -1 if none.
        owners: number of sequences that share the slot.
        checkpoints: earlier states, ascending.
    """

    index: int
    position: int = -1
    owners: int = 1
    checkpoints: list[Checkpoint] = field(default_factory=list)


class SavedSlot(NamedTuple):
    """A saved state: the sequences that share it, its position, its checkpoints, and its
    arrays by layer."""

    owners: Sequence[int]
    position: int
    checkpoints: Sequence[Checkpoint]
    arrays: dict[int, Any]


class Slots:
    """The slots of all sequences.

    Args:
        count: number of slots.
        interval: minimum distance between two checkpoints, in positions; None or 0 for no
            checkpoints.
        checkpoints: number of latest checkpoints to keep for each state.

    Attributes:
        free: indexes of the free slots.
        assigned: sequence → its slot, for sequences that have a slot.
    """

    def __init__(self, count: int, interval: int | None, checkpoints: int) -> None:
        self.count, self.interval, self.checkpoints = count, interval or None, checkpoints
        self.free = list(range(count))[::-1]
        self.assigned: dict[int, Slot] = {}

    def check(self, owners: Sequence[int]) -> None:
        """Raises CacheFullError if there are too few slots for the sequences."""
        used = {
            slot.index for owner, slot in self.assigned.items() if owner not in owners
        }
        if len(owners) + len(used) > self.count:
            raise CacheFullError(
                f"{len(owners)} states do not fit: {self.count - len(used)} of"
                f" {self.count} slots are free"
            )

    def own(self, owners: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Gives each sequence a slot that it shares with no other sequence.

        Returns:
            The new slots that must be cleared, and the (source, target) pairs that must
            be copied.
        """
        fresh, copies = [], []
        for owner in owners:
            slot = self.assigned.get(owner)
            if slot is None:
                self.assigned[owner] = Slot(self.free.pop())
                fresh.append(self.assigned[owner].index)
            elif slot.owners > 1:
                slot.owners -= 1
                copied = replace(slot, index=self.free.pop(), owners=1)
                self.assigned[owner] = copied
                copies.append((slot.index, copied.index))
        return fresh, copies

    def advance(self, owner: int, highest: int) -> Checkpoint | None:
        """Records that the state of a sequence has read tokens.

        Args:
            owner: the sequence.
            highest: highest position among the tokens read.

        Returns:
            The checkpoint to fill; None if no checkpoint is due.
        """
        slot = self.assigned[owner]
        slot.position = max(slot.position, highest)
        if self.interval is None:
            return None
        last = slot.checkpoints[-1].position if slot.checkpoints else -self.interval
        if slot.position - last < self.interval:
            return None
        checkpoint = Checkpoint(slot.position)
        slot.checkpoints = [*slot.checkpoints, checkpoint][-self.checkpoints :]
        return checkpoint

    def find(self, owner: int, position: int) -> Checkpoint | None:
        """Returns the checkpoint at exactly `position`."""
        slot = self.assigned.get(owner)
        for checkpoint in slot.checkpoints if slot else ():
            if checkpoint.position == position:
                return checkpoint
        return None

    def rewind(self, owner: int, checkpoint: Checkpoint) -> int:
        """Sets a sequence back to a checkpoint and drops the later checkpoints.

        Returns:
            Index of the slot to fill with the checkpoint; no other sequence shares it.

        Raises:
            CacheFullError: the slot is shared and no slot is free. Nothing changes.
        """
        old = self.assigned[owner]
        if old.owners > 1 and not self.free:
            raise CacheFullError(
                f"the state is shared and would be copied, but all {self.count} slots"
                " are in use"
            )
        earlier = [
            saved for saved in old.checkpoints if saved.position <= checkpoint.position
        ]
        self.drop(owner)
        slot = Slot(self.free.pop(), checkpoint.position)
        slot.checkpoints = earlier
        self.assigned[owner] = slot
        return slot.index

    def share(self, source: int, target: int) -> None:
        self.drop(target)
        if source in self.assigned:
            self.assigned[target] = self.assigned[source]
            self.assigned[target].owners += 1

    def drop(self, owner: int) -> None:
        slot = self.assigned.pop(owner, None)
        if slot is not None:
            slot.owners -= 1
            if slot.owners == 0:
                self.free.append(slot.index)

    def list_owners(self) -> list[tuple[Slot, list[int]]]:
        """Lists each slot that is in use, with its sequences."""
        assigned = self.assigned.items()
        return [
            (slot, [owner for owner, shared in assigned if shared is slot])
            for slot in dict.fromkeys(self.assigned.values())
        ]

    def load(self, states: Sequence[SavedSlot]) -> list[int]:
        """Replaces all slots by saved states.

        Returns:
            For each state, the index of the slot to fill.
        """
        for owner in list(self.assigned):
            self.drop(owner)
        indexes = []
        for owners, position, checkpoints, _ in states:
            slot = Slot(self.free.pop(), position, len(owners), [*checkpoints])
            self.assigned.update(dict.fromkeys(owners, slot))
            indexes.append(slot.index)
        return indexes
