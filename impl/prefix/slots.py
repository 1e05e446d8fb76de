"""Several users over one cache of many sequences: who gets which, and what is reused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.impl.prefix.statistics import Log, Statistics, explain
from lockstep.impl.prefix.tokens import check_request, check_tokens, count_common
from lockstep.impl.shared.errors import CacheFullError, NotSupportedError, SharedError

REFUSALS: tuple[type[Exception], ...] = (CacheFullError, NotSupportedError, SharedError)
"""What our own caches raise where they cannot cut or copy a sequence."""


class NoSlotError(Exception):
    """Every slot is in use."""


class Cache(Protocol):
    """The interface of a cache of many sequences that slots need."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def remove(self, sequence: int, begin: int, end: int | None) -> None: ...
    def can_resume(self, sequence: int, position: int) -> bool: ...


@dataclass
class Slot:
    """One sequence of the cache.

    tokens: what it holds, the token at position p in place p. remaining: those of the
    open request that are left to compute. reserved: how many of them have positions.
    in_use: a request is open. used: when one last began; higher is later.
    """

    tokens: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    reserved: int = 0
    in_use: bool = False
    used: int = 0


class Slots:
    """One slot for each sequence of the cache, which is given empty.

    context: how many tokens a slot may hold. keep: how many at the beginning stay when
    the middle of an over-long conversation goes. several_users: a conversation that
    leaves another one gets a slot of its own, and a copy of what they share; else it
    continues in the slot of the other. refusals: what the cache raises if it cannot cut
    or copy a sequence; then all of it is computed again.
    """

    def __init__(
        self,
        cache: Cache,
        count: int,
        context: int,
        keep: int = 0,
        several_users: bool = False,
        refusals: tuple[type[Exception], ...] = REFUSALS,
    ) -> None:
        if count < 1:
            raise ValueError(f"count {count} is no number of slots; give 1 or more")
        if not 0 <= keep < context:
            raise ValueError(
                f"keep {keep} is not in 0 … {context - 1}: of {context} tokens some must"
                " be free to go"
            )
        self._cache = cache
        self.context, self.keep = context, keep
        self.several_users, self.refusals = several_users, refusals
        self.slots = [Slot() for _ in range(count)]
        self.clock = 0
        self.log = Log()

    @property
    def cache(self) -> Cache:
        return self._cache

    # --- a request ----------------------------------------------------------------------

    def begin(self, tokens: Iterable[int]) -> int:
        """Opens a request in a slot that is free, and returns its number; what is left to
        compute, at least one token, `get_remaining` tells.

        Raises NoSlotError if no slot is free.
        """
        request = check_request(tokens)
        common = [count_common(request, slot.tokens) for slot in self.slots]
        number = self.choose(request, common)
        slot = self.slots[number]
        self.clock += 1
        slot.in_use, slot.used = True, self.clock
        reuse, reason = self.go(number, request)
        slot.tokens, slot.remaining = request[:reuse], request[reuse:]
        self.log.add(len(request), reuse, reason)
        return number

    def choose(self, request: list[int], common: list[int]) -> int:
        """The number of the slot that a request gets. common: how many tokens it shares
        with each."""
        free = [number for number, slot in enumerate(self.slots) if not slot.in_use]
        if not free:
            raise NoSlotError(f"all {len(self.slots)} slots are in use; close one first")
        if not self.several_users:
            return max(free, key=lambda number: common[number])
        longest = max(common)
        for number in free:
            if 0 < longest == common[number] == len(self.slots[number].tokens):
                return number
        oldest = min(free, key=lambda number: self.slots[number].used)
        if common[oldest] < longest:
            self.fork(common.index(longest), oldest, request[:longest])
        return oldest

    def fork(self, source: int, target: int, tokens: list[int]) -> None:
        """The target gets what the source has of these tokens, and nothing else; nothing
        at all if the cache cannot copy."""
        slot = self.slots[target]
        try:
            self.cache.copy_prefix(source, target, len(tokens))
            slot.tokens = tokens
        except self.refusals:
            slot.tokens = []  # and whatever was copied goes when the request begins

    def go(self, number: int, request: list[int]) -> tuple[int, str]:
        """Brings a sequence to where the request leaves it, or empties it; how many
        tokens are left, and why not more."""
        stored = self.slots[number].tokens
        matched = count_common(request, stored)
        target = min(matched, len(request) - 1)
        if target and not self._cache.can_resume(number, target):
            self.cut(number, 0)
            return 0, f"the cache cannot resume at position {target}"
        reuse = self.cut(number, target)
        if reuse < target:
            return reuse, f"the cache cannot cut the sequence at position {target}"
        return reuse, explain(len(stored), matched, len(request))

    def cut(self, number: int, length: int) -> int:
        """The sequence keeps its first `length` tokens, or nothing if the cache cannot do
        that; how many are left."""
        try:
            self._cache.remove(number, length, None)
        except self.refusals:
            self._cache.remove(number, 0, None)
            return 0
        return length

    def extend(self, slot: int, tokens: Iterable[int]) -> None:
        """Adds tokens that were generated to what is left to compute."""
        self.get_open(slot).remaining += check_tokens(tokens)

    def close(self, slot: int) -> int:
        """The slot is free again and keeps what was computed; how many tokens that is."""
        one = self.get_open(slot)
        one.in_use, one.remaining, one.reserved = False, [], 0
        one.tokens = one.tokens[: self.cut(slot, len(one.tokens))]
        return len(one.tokens)

    def cancel(self, slot: int) -> int:
        """The same for a request that was broken off."""
        return self.close(slot)

    # --- a pass -------------------------------------------------------------------------

    def reserve(self, slot: int, count: int) -> range:
        """The positions of the next `count` of the remaining tokens. Where they would be
        too many, the middle of the conversation goes, or all of it has to be computed
        again: there may be more remaining tokens then, and others.

        They belong to the slot only once they are computed; see `commit`.
        """
        one = self.get_open(slot)
        most = min(len(one.remaining), self.context - self.keep)
        if not 0 < count <= most:
            raise ValueError(
                f"reserve: {count} tokens cannot be computed now; {len(one.remaining)}"
                f" are left, and {self.context - self.keep} fit at once"
            )
        if len(one.tokens) + count > self.context:
            self.discard(slot, count)
        one.reserved = count
        return range(len(one.tokens), len(one.tokens) + count)

    def discard(self, number: int, count: int) -> None:
        """Lets go of tokens behind the first `keep`: half of what can go, or as many as
        must. What follows moves up; if the cache cannot do that, all that is left is to
        be computed again."""
        slot = self.slots[number]
        half = (self.context - self.keep) // 2
        end = self.keep + max(half, count) - (self.context - len(slot.tokens))
        left = slot.tokens[: self.keep] + slot.tokens[end:]
        try:
            self._cache.remove(number, self.keep, end)
        except self.refusals:
            self._cache.remove(number, 0, None)
            slot.tokens, slot.remaining = [], left + slot.remaining
        else:
            slot.tokens = left

    def commit(self, slot: int, count: int) -> None:
        """The tokens that were reserved last, `count`, have been computed."""
        one = self.get_open(slot)
        if count != one.reserved:
            raise ValueError(
                f"commit: {count} tokens, but {one.reserved} were reserved; commit these"
                " once they are computed"
            )
        one.reserved = 0
        one.tokens += one.remaining[:count]
        del one.remaining[:count]

    # --- what is there ------------------------------------------------------------------

    def get_tokens(self, slot: int) -> list[int]:
        """The tokens that a slot holds, all of them computed."""
        return list(self.get_slot(slot).tokens)

    def get_remaining(self, slot: int) -> list[int]:
        """The tokens of its request that are left to compute."""
        return list(self.get_slot(slot).remaining)

    def get_slot(self, number: int) -> Slot:
        if not 0 <= number < len(self.slots):
            raise ValueError(f"slot {number} is none of 0 … {len(self.slots) - 1}")
        return self.slots[number]

    def get_open(self, number: int) -> Slot:
        slot = self.get_slot(number)
        if not slot.in_use:
            raise ValueError(f"no request is open in slot {number}; begin opens one")
        return slot

    def get_statistics(self) -> Statistics:
        """Tokens as the slots hold them, shared or not; the cache knows its bytes."""
        return self.log.get(sum(len(slot.tokens) for slot in self.slots), 0)
