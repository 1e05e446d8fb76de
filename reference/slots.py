"""Several users over one cache of many sequences: who gets which, and what is reused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .errors import CacheFull, NotSupported, Shared
from .layers import Tokens, check_tokens, count_common


class Cache(Protocol):
    """What slots need of a cache of many sequences, such as `reference.causal`."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def remove(self, sequence: int, begin: int, end: int | None) -> None: ...
    def can_resume(self, sequence: int, position: int) -> bool: ...


REFUSALS = (CacheFull, NotSupported, Shared)
"""What a cache may answer if it cannot cut or copy a sequence."""


class NoSlot(Exception):
    """Every slot is in use."""


@dataclass
class Slot:
    """One sequence of the cache.

    tokens: what it holds, the token at position p in place p. remaining: tokens of the
    open request that are still to be computed. reserved: how many of them have a place.
    in_use: a request is open. used: when one last began; higher is later.
    """

    tokens: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    reserved: int = 0
    in_use: bool = False
    used: int = 0


class Slots:
    """One slot for each sequence of the cache.

    context: how many tokens a slot may hold. keep: how many at the beginning stay when
    the middle of an over-long conversation goes. several_users: a conversation that
    leaves another one gets a slot of its own, and a copy of what they share; else it
    continues in the slot of the other.
    """

    def __init__(
        self,
        cache: Cache,
        count: int,
        context: int,
        keep: int = 0,
        several_users: bool = False,
    ) -> None:
        if not 0 <= keep < context:
            raise ValueError(f"keep {keep} leaves nothing to move in {context} tokens")
        self.cache = cache
        self.context, self.keep = context, keep
        self.several_users = several_users
        self.slots = [Slot() for _ in range(count)]
        self.clock = 0

    # --- a request ----------------------------------------------------------------------

    def begin(self, tokens: Tokens) -> int:
        """Opens a request in a slot that is free, and returns its number; what is left to
        compute, at least one token, is `remaining` of that slot.

        Raises NoSlot if none is free.
        """
        check_tokens(tokens)
        if not tokens:
            raise ValueError("the request is empty; there is nothing to compute")
        number = self.choose(tokens)
        slot = self.slots[number]
        self.clock += 1
        slot.in_use, slot.used = True, self.clock
        reuse = min(count_common(tokens, slot.tokens), len(tokens) - 1)
        if reuse and not self.cache.can_resume(number, reuse):
            reuse = 0
        slot.tokens = list(tokens[: self.cut(number, reuse)])
        slot.remaining = list(tokens[len(slot.tokens) :])
        return number

    def choose(self, tokens: Tokens) -> int:
        """The number of the slot that a request gets."""
        free = [number for number, slot in enumerate(self.slots) if not slot.in_use]
        if not free:
            raise NoSlot(f"all {len(self.slots)} slots are in use")
        common = [count_common(tokens, slot.tokens) for slot in self.slots]
        if not self.several_users:
            return max(free, key=lambda number: common[number])
        longest = max(common)
        for number in free:
            if 0 < longest == common[number] == len(self.slots[number].tokens):
                return number
        oldest = min(free, key=lambda number: self.slots[number].used)
        if common[oldest] < longest:
            self.fork(common.index(longest), oldest, tokens[:longest])
        return oldest

    def fork(self, source: int, target: int, tokens: Tokens) -> None:
        """The target gets what the source has of these tokens, and nothing else; nothing
        at all if the cache cannot copy."""
        slot = self.slots[target]
        try:
            self.cache.copy_prefix(source, target, len(tokens))
            slot.tokens = list(tokens)
        except REFUSALS:
            slot.tokens = []  # and whatever was copied goes when the request begins

    def cut(self, number: int, length: int) -> int:
        """The sequence keeps its first `length` tokens, or nothing if the cache cannot do
        that; how many are left."""
        try:
            self.cache.remove(number, length, None)
        except REFUSALS:
            self.cache.remove(number, 0, None)
            return 0
        return length

    def extend(self, number: int, tokens: Tokens) -> None:
        """Adds tokens that were generated to what is to be computed."""
        check_tokens(tokens)
        self.get_open(number).remaining += tokens

    def reserve(self, number: int, count: int) -> range:
        """The positions of the next `count` tokens; where they would be too many, the
        middle of the conversation goes. They belong to the slot only once they are
        computed; see `commit`."""
        slot = self.get_open(number)
        if not 0 < count <= min(len(slot.remaining), self.context - self.keep):
            raise ValueError(f"{count} tokens cannot be computed now")
        if len(slot.tokens) + count > self.context:
            self.discard(number, count)
        slot.reserved = count
        return range(len(slot.tokens), len(slot.tokens) + count)

    def discard(self, number: int, count: int) -> None:
        """Lets go of tokens behind the first `keep`: half of what can go, or as many as
        must. What follows moves up; if the cache cannot do that, all that is left is to
        be computed again."""
        slot = self.slots[number]
        half = (self.context - self.keep) // 2
        gone = max(half, count) - (self.context - len(slot.tokens))
        left = slot.tokens[: self.keep] + slot.tokens[self.keep + gone :]
        try:
            self.cache.remove(number, self.keep, self.keep + gone)
        except REFUSALS:
            self.cache.remove(number, 0, None)
            slot.tokens, slot.remaining = [], left + slot.remaining
        else:
            slot.tokens = left

    def commit(self, number: int, count: int) -> None:
        """The tokens that were reserved last, `count`, have been computed."""
        slot = self.get_open(number)
        if count != slot.reserved:
            raise ValueError(f"{count} tokens were computed, not {slot.reserved}")
        slot.reserved = 0
        slot.tokens += slot.remaining[:count]
        slot.remaining = slot.remaining[count:]

    def close(self, number: int) -> int:
        """The slot is free again, and keeps what was computed; how many tokens that is.
        Cancelling is the same."""
        slot = self.get_open(number)
        slot.in_use, slot.remaining, slot.reserved = False, [], 0
        slot.tokens = slot.tokens[: self.cut(number, len(slot.tokens))]
        return len(slot.tokens)

    def get_open(self, number: int) -> Slot:
        if not 0 <= number < len(self.slots) or not self.slots[number].in_use:
            raise ValueError(f"no request is open in slot {number}")
        return self.slots[number]
