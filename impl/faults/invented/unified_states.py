"""Invented mistakes of recurrent caches: slots, and checkpoints of them."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.invented.unified import invent
from lockstep.impl.shared.batch import Batch
from lockstep.impl.shared.errors import CacheFullError
from lockstep.impl.shared.slots import Checkpoint


@invent("forward", "order", "recurrent", 2)
def states_by_number(cache: Any) -> None:
    """States are handed out by the numbers of their sequences, not in the order in which
    these come in the batch."""

    def list_slots() -> list[int]:
        current = cache.get_pass()
        owners = sorted(current.batch.owners)
        if current.cells is None:
            return [place % cache.slots.count for place in range(len(owners))]
        return [cache.slots.of[owner].index for owner in owners]

    cache.list_slots = list_slots


@invent("forward", "missing rollback", "recurrent", 2)
def refused_states_keep_tokens(cache: Any) -> None:
    """That no slot is left shows once the tokens are stored, and they stay."""
    check = cache.slots.check
    refuse, add = cache.refuse, cache.cells.add

    def refuse_late(batch: Batch) -> None:
        cache.slots.check = lambda owners: None
        refuse(batch)
        cache.slots.check = check
        try:
            check(batch.owners)
        except CacheFullError:
            add(batch)
            raise

    cache.refuse = refuse_late


@invent("forward", "error class", "recurrent", 1)
def room_before_rows(cache: Any) -> None:
    """A batch that is too large and uneven is refused for its size, not for its form."""
    refuse = cache.refuse

    def check_and_refuse(batch: Batch) -> None:
        cache.cells.check(len(batch))
        refuse(batch)

    cache.refuse = check_and_refuse


@invent("copy_prefix", "aliasing", "recurrent", 4)
def copies_share_checkpoints(cache: Any) -> None:
    """A state that is copied shares the list of its checkpoints with the copy: each gets
    those of the other as they go on."""
    slots, advance = cache.slots, cache.slots.advance

    def advance_in_place(owner: int, *positions: int) -> Checkpoint | None:
        shared = slots.of[owner].checkpoints
        due: Checkpoint | None = advance(owner, *positions)
        shared[:] = slots.of[owner].checkpoints
        slots.of[owner].checkpoints = shared
        return due

    slots.advance = advance_in_place


@invent("copy_prefix", "evicted too late", "recurrent", 3)
def copy_of_nothing_keeps_state(cache: Any) -> None:
    """The target of a copy keeps its old state where the source has none."""
    slots, share = cache.slots, cache.slots.share

    def share_some(source: int, target: int) -> None:
        if source in slots.of:
            share(source, target)

    slots.share = share_some


@invent("remove", "evicted too early", "recurrent", 4)
def slot_is_free_while_shared(cache: Any) -> None:
    """The slot of a sequence that is cleared counts as free, though another shares it."""
    slots, drop = cache.slots, cache.slots.drop

    def drop_and_free(owner: int) -> None:
        slot = slots.of.get(owner)
        drop(owner)
        if slot is not None and slot.owners > 0:
            slots.free.append(slot.index)

    slots.drop = drop_and_free


@invent("remove", "stale metadata", "recurrent", 4)
def later_checkpoints_stay(cache: Any) -> None:
    """A state that went back keeps the checkpoints of what it has forgotten."""
    slots, rewind = cache.slots, cache.slots.rewind

    def rewind_and_keep(owner: int, checkpoint: Checkpoint) -> int:
        old = slots.of[owner].checkpoints
        index: int = rewind(owner, checkpoint)
        slots.of[owner].checkpoints = list(old)
        return index

    slots.rewind = rewind_and_keep


@invent("remove", "wrong layer", "recurrent", 4)
def checkpoint_of_one_layer(cache: Any) -> None:
    """A checkpoint is taken of the layer that is written first; the others stay as they
    are when the state goes back."""
    write_states = cache.write_states

    def write_and_settle(layer: int, conv: Any, delta: Any) -> None:
        write_states(layer, conv, delta)
        cache.pending = ()

    cache.write_states = write_and_settle


@invent("can_resume", "order", "recurrent", 2)
def resumes_behind_last_row(cache: Any) -> None:
    """A state is taken to have read nothing behind the token that it read last."""
    slots, advance = cache.slots, cache.slots.advance

    def advance_to_last(owner: int, *positions: int) -> Checkpoint | None:
        due: Checkpoint | None = advance(owner, *positions)
        slot = slots.of[owner]
        slot.highest = slot.position
        if due is not None:
            due.highest = due.position
        return due

    slots.advance = advance_to_last
