"""Mistakes of slots that we thought up."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import Inventor
from lockstep.impl.prefix.tokens import check_tokens
from lockstep.impl.shared.errors import SharedError

invent = Inventor("prefix")
FAULTS = invent.faults


@invent("begin", "wrong sequence", "slots", 5)
def forked_from_latest(slots: Any) -> None:
    """A conversation that leaves others is copied from the one used last that begins like
    it, not from the one with which it shares most."""
    fork = slots.fork

    def fork_latest(source: int, target: int, tokens: list[int]) -> None:
        alike = [
            number
            for number, slot in enumerate(slots.slots)
            if number != target and slot.tokens[:1] == tokens[:1]
        ]
        fork(max(alike, key=lambda n: slots.slots[n].used), target, tokens)

    slots.fork = fork_latest


@invent("begin", "bound", "slots", 4)
def copy_not_asked(slots: Any) -> None:
    """Where a request goes on behind what was just copied for it, the cache is not asked
    whether it can resume there; a copy may lack the window."""
    fork, go = slots.fork, slots.go
    slots.copied = None

    def fork_and_note(source: int, target: int, tokens: list[int]) -> None:
        fork(source, target, tokens)
        slots.copied = target

    def go_unasked(number: int, request: list[int]) -> Any:
        copied, slots.copied = slots.copied, None
        if number != copied:
            return go(number, request)
        held = len(slots.slots[number].tokens)
        return slots.cut(number, min(held, len(request) - 1)), "only so many are stored"

    slots.fork, slots.go = fork_and_note, go_unasked


@invent("begin", "stale metadata", "slots", 6)
def refused_copy_keeps_tokens(slots: Any) -> None:
    """A slot into which nothing could be copied still counts as holding what it held,
    although some of the caches have let go of it."""
    fork = slots.fork

    def fork_or_keep(source: int, target: int, tokens: list[int]) -> None:
        held = slots.slots[target].tokens
        fork(source, target, tokens)
        slots.slots[target].tokens = slots.slots[target].tokens or held

    slots.fork = fork_or_keep


@invent("begin", "missing rollback", "slots", 4)
def empty_slot_not_cut(slots: Any) -> None:
    """A slot that holds no token is not emptied, although a copy that was refused may
    have left something there."""
    go = slots.go

    def go_unless_empty(number: int, request: list[int]) -> Any:
        held = slots.slots[number].tokens
        return go(number, request) if held else (0, "nothing is stored")

    slots.go = go_unless_empty


@invent("feed", "missing rollback", "slots", 3)
def computed_beside_the_old(slots: Any) -> None:
    """Where an over-long conversation is computed again, what was there stays."""
    discard = slots.discard

    def discard_and_leave(number: int, count: int) -> None:
        cache, remove = slots.cache, slots.cache.remove
        cache.remove = lambda *cut: None if cut[2] is None else remove(*cut)
        try:
            discard(number, count)
        finally:
            cache.remove = remove

    slots.discard = discard_and_leave


@invent("feed", "error class", "slots", 4)
def shared_is_no_refusal(slots: Any) -> None:
    """A cache that cannot move up tokens that another slot shares is not taken for one
    that refuses: nothing is computed again, the error goes to the user."""
    slots.refusals = tuple(one for one in slots.refusals if one is not SharedError)


@invent("feed", "evicted too early", "slots", 3)
def kept_not_computed(slots: Any) -> None:
    """Where an over-long conversation is computed again, it lacks the tokens at its
    beginning that were to stay."""
    discard = slots.discard

    def discard_kept(number: int, count: int) -> None:
        slot = slots.slots[number]
        discard(number, count)
        if not slot.tokens:
            del slot.remaining[: slots.keep]

    slots.discard = discard_kept


@invent("feed", "aliasing", "slots", 2)
def generated_list_kept(slots: Any) -> None:
    """Where nothing is left to compute, the caller's own list of generated tokens becomes
    what is left."""
    extend = slots.extend

    def extend_or_take(number: int, tokens: Any) -> None:
        slot = slots.get_open(number)
        if slot.remaining:
            extend(number, tokens)
        else:
            check_tokens(tokens)
            slot.remaining = tokens

    slots.extend = extend_or_take


@invent("feed", "bound", "slots", 3)
def half_of_all(slots: Any) -> None:
    """Of an over-long conversation half of all that a slot may hold goes, not half of
    what may go."""
    discard = slots.discard

    def discard_more(number: int, count: int) -> None:
        discard(number, max(count, slots.context // 2))

    slots.discard = discard_more


@invent("close", "evicted too early", "slots", 5)
def closing_is_use(slots: Any) -> None:
    """Slots are used in the order in which their requests were closed, not begun."""
    close = slots.close

    def close_and_use(number: int) -> int:
        stored: int = close(number)
        slots.clock += 1
        slots.slots[number].used = slots.clock
        return stored

    slots.close = close_and_use


@invent("close", "silent clamp", "slots", 3)
def full_slot_cut(slots: Any) -> None:
    """A slot that is exactly full loses its last token when its request is closed, for
    the next one to have a place."""
    close = slots.close

    def close_and_cut(number: int) -> int:
        tokens = slots.get_open(number).tokens
        del tokens[slots.context - 1 :]
        stored: int = close(number)
        return stored

    slots.close = close_and_cut


@invent("cancel", "wrong sequence", "slots", 5)
def latest_cancelled(slots: Any) -> None:
    """When a request is cancelled, the sequence of the one that began last is cut."""
    cut = slots.cut

    def cancel(number: int) -> int:
        latest = max(range(len(slots.slots)), key=lambda n: slots.slots[n].used)
        slots.cut = lambda _, length: cut(latest, length)
        try:
            stored: int = slots.close(number)
        finally:
            slots.cut = cut
        return stored

    slots.cancel = cancel


@invent("break", "stale metadata", "slots", 4)
def broken_pass_stays(slots: Any) -> None:
    """What a pass that broke off has written stays when its request is closed."""
    close, cut = slots.close, slots.cut

    def close_uncut(number: int) -> int:
        slots.cut = lambda _, length: length
        try:
            stored: int = close(number)
        finally:
            slots.cut = cut
        return stored

    slots.close = close_uncut


@invent("refuse", "missing rollback", "slots", 5)
def refused_stays(slots: Any) -> None:
    """A sequence that the cache cannot cut counts as empty, but is not emptied."""

    def cut(number: int, length: int) -> int:
        try:
            slots.cache.remove(number, length, None)
        except slots.refusals:
            return 0
        return length

    slots.cut = cut
