"""Mistakes of slots over one cache of several sequences."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake


@mistake("slots", 6)
def refused_copy_keeps_tokens(slots: Any) -> None:
    """After a refused copy the target slot still counts as holding its old tokens,
    although some of the caches have dropped them."""
    edit(slots, "fork", "slot.tokens = []", "pass")


@mistake("slots", 4)
def empty_slot_not_cut(slots: Any) -> None:
    """A slot without tokens is not emptied, although a refused copy may have left some in
    the cache."""
    skip = 'if not stored:\n        return 0, "nothing is stored"'
    edit(slots, "go", "matched = ", f"{skip}\n    matched = ")


@mistake("slots", 4)
def discarded_before_checked(slots: Any) -> None:
    """The middle of a full slot is removed before the number of tokens to compute is
    checked."""
    original, fits = (
        "request = self.get_open(slot)",
        "0 < count <= self.context - self.keep",
    )
    full = f"if {fits} and len(request.tokens) + count > self.context:"
    edit(
        slots,
        "reserve",
        original,
        f"{original}\n    {full}\n        self.discard(slot, count)",
    )


@mistake("slots", 2)
def reserves_what_fits(slots: Any) -> None:
    """If a pass has more tokens than fit at once, the tokens that fit are reserved, but
    the call should be refused."""
    original = "if not 0 < count <= most:"
    less = "count = min(count, most) if count <= len(request.remaining) else count"
    edit(slots, "reserve", original, f"{less}\n    {original}")


@mistake("slots", 3)
def committed_twice(slots: Any) -> None:
    """A reservation stays after its commit and can be committed again, for tokens that
    were never computed."""
    edit(slots, "commit", "request.reserved = 0", "pass")
