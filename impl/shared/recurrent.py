"""A causal cache with recurrent states, without the arrays of a framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.impl.shared.batch import PassRows, check_range
from lockstep.impl.shared.causal import CausalCacheBase, Saved, Sizes
from lockstep.impl.shared.errors import MisuseError, NotSupportedError
from lockstep.impl.shared.slots import Checkpoint, SavedSlot, Slots


class RecurrentCacheBase(CausalCacheBase):
    """A causal cache whose sequences have a state in each layer; see `impl.shared.slots`.

    A subclass lists this class before the causal cache of its framework.

    Attributes:
        slots: the slot of each sequence.
        conv, delta: the states of each layer, [slots, ...].
        pending: for each sequence of the open pass, the checkpoint to fill, or None.
    """

    conv: Any
    delta: Any
    pending: Sequence[Checkpoint | None] = ()

    def __init__(
        self,
        sizes: Sizes,
        slots: Slots,
        conv: Sequence[int],
        delta: Sequence[int],
        layers: int = 1,
        **options: Any,
    ) -> None:
        if sizes.sections:
            raise MisuseError("a recurrent cache has positions of one axis, no sections")
        super().__init__(sizes, layers, **options)
        self.slots = slots
        self.shapes = {"conv": tuple(conv), "delta": tuple(delta)}
        self.make_states(conv, delta)

    @abstractmethod
    def make_states(self, conv: Sequence[int], delta: Sequence[int]) -> None:
        """Makes the states of all slots in these shapes, filled with zeros."""

    def check_rows(self, batch: PassRows) -> None:
        """Refuses a pass whose sequences have different numbers of rows."""
        lengths = set(batch.count_rows())
        if len(lengths) > 1:
            raise NotSupportedError(
                f"the sequences of the batch have {sorted(lengths)} rows, but recurrent"
                " layers need the same number of rows for each sequence"
            )

    def refuse(self, batch: PassRows) -> None:
        self.check_rows(batch)
        super().refuse(batch)
        self.slots.check(batch.owners)

    def add(self, batch: PassRows) -> None:
        super().add(batch)
        fresh, copies = self.slots.own(batch.owners)
        if fresh:
            self.clear_slots(fresh)
        if copies:
            self.copy_slots(*zip(*copies, strict=True))
        self.pending = [self.advance(owner, batch) for owner in batch.owners]

    def advance(self, owner: int, batch: PassRows) -> Checkpoint | None:
        """Advances the state of one sequence by its rows of the batch.

        Returns:
            The checkpoint to fill; None if no checkpoint is due.
        """
        return self.slots.advance(owner, batch.get_span(owner)[1])

    def write_states(self, layer: int, conv: Any, delta: Any) -> None:
        """Stores conv and delta after the pass and fills the checkpoints that are due."""
        current = self.get_pass()
        for array, buffer in ((conv, self.conv[layer]), (delta, self.delta[layer])):
            wanted = (len(current.batch.owners), *buffer.shape[1:])
            if array.shape != wanted:
                raise MisuseError(
                    f"the states have shape {list(array.shape)}, but must have"
                    f" {list(wanted)}"
                )
        if current.cells is not None:
            self.store_states(layer, conv, delta)

    def list_slots(self) -> list[int]:
        """Returns the slots of the open pass, one for each sequence.

        A pass that only reserves memory takes the first slots.
        """
        current = self.get_pass()
        if current.cells is None:
            return [
                number % self.slots.count for number in range(len(current.batch.owners))
            ]
        return [self.slots.assigned[owner].index for owner in current.batch.owners]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies the tokens, like a causal cache, and shares the whole state."""
        super().copy_prefix(source, target, length)
        self.slots.share(source, target)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the end of a sequence, back to a checkpoint, or the whole sequence.

        Raises:
            NotSupportedError: tokens follow the gap, or there is no checkpoint before it.
                Nothing changes.
        """
        check_range(sequence, begin, end, self.sizes.sequences)
        slot = self.slots.assigned.get(sequence)
        position = slot.position if slot else -1
        if end is not None and position >= end:
            raise NotSupportedError(
                f"remove: the range ends at {end}, but a state can lose only its last"
                f" tokens; end after position {position}"
            )
        if begin == 0 or position < begin:
            super().remove(sequence, begin, end)
            if begin == 0:
                self.slots.drop(sequence)
            return
        checkpoint = self.slots.find(sequence, begin - 1)
        if checkpoint is None:
            raise NotSupportedError(
                f"remove: there is no checkpoint at position {begin - 1}, to which the"
                " state would go back"
            )
        index = self.slots.rewind(sequence, checkpoint)
        super().remove(sequence, begin, end)
        self.restore_slot(index, checkpoint.arrays)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether the state or a checkpoint ends just before `position`."""
        if not super().can_resume(sequence, position):
            return False
        slot = self.slots.assigned.get(sequence)
        if position == 0 or slot is None:
            return position == 0
        checkpoint = self.slots.find(sequence, position - 1)
        return slot.position == position - 1 or checkpoint is not None

    def save(self) -> Saved:
        states = [
            SavedSlot(owners, slot.position, slot.checkpoints, self.copy_slot(slot.index))
            for slot, owners in self.slots.list_owners()
        ]
        return replace(super().save(), states=states)

    def get_limits(self) -> Mapping[str, Any]:
        return {**super().get_limits(), "slots": self.slots.count, **self.shapes}

    def load(self, saved: Saved) -> None:
        super().load(saved)
        indexes = self.slots.load(saved.states)
        for index, state in zip(indexes, saved.states, strict=True):
            self.restore_slot(index, state.arrays)

    def list_arrays(self) -> list[Any]:
        slots = self.slots.assigned.values()
        checkpoints = {
            id(checkpoint): checkpoint
            for slot in slots
            for checkpoint in slot.checkpoints
        }
        pairs = [
            pair
            for checkpoint in checkpoints.values()
            for pair in checkpoint.arrays.values()
        ]
        states = [*super().list_arrays(), *self.list_states()]
        return states + [array for pair in pairs for array in pair]

    @abstractmethod
    def store_states(self, layer: int, conv: Any, delta: Any) -> None:
        """Writes the states of the sequences of the open pass; see `write_states`."""

    @abstractmethod
    def list_states(self) -> list[Any]:
        """Lists the arrays of all slots."""

    @abstractmethod
    def clear_slots(self, slots: Sequence[int]) -> None:
        """Sets these slots to zero, in all layers."""

    @abstractmethod
    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies slots, in all layers."""

    @abstractmethod
    def copy_slot(self, slot: int) -> dict[int, Any]:
        """Returns a copy of a slot, by layer."""

    @abstractmethod
    def restore_slot(self, slot: int, arrays: dict[int, Any]) -> None:
        """Writes the arrays of a checkpoint, by layer, to a slot."""
