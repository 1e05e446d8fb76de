"""Several users over one cache of many sequences: who gets which, and what is reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .errors import CacheFull, NotSupported, Shared
from .layers import Tokens, check_tokens, count_common


class Cache(Protocol):
    """The operations that slots need of a cache, such as `reference.causal`."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def remove(self, sequence: int, begin: int, end: int | None) -> None: ...
    def can_resume(self, sequence: int, position: int) -> bool: ...


REFUSALS = (CacheFull, NotSupported, Shared)
"""The errors of a cache that cannot cut or copy a sequence."""


class NoSlot(Exception):
    """Every slot is in use."""


@dataclass(eq=False)
class Slot:
    """One sequence of the cache, from one request until the next.

    Attributes:
        number: the number of the sequence.
        conversation: the tokens of the request, generated ones included. The slot holds
            the first of them; the others remain to be computed.
        computed: how many tokens the slot holds; token number p has position p.
        reserved: how many of the remaining tokens have positions.
        in_use: whether the request is open.
    """

    number: int
    conversation: list[int]
    computed: int = 0
    reserved: int = 0
    in_use: bool = False

    @property
    def tokens(self) -> list[int]:
        """The tokens that the slot holds."""
        return self.conversation[: self.computed]

    @property
    def remaining(self) -> list[int]:
        """The tokens that remain to be computed."""
        return self.conversation[self.computed :]


class Slots:
    """One slot for each sequence of the cache.

    Args:
        cache: an empty cache.
        count: number of its sequences.
        context: how many tokens a slot may hold.
        keep: how many tokens at the beginning of an over-long conversation stay when its
            middle goes.
        several_users: a request that leaves a stored conversation gets another slot and a
            copy of the common prefix. Otherwise it continues in the same slot.

    Attributes:
        history: an empty slot of each number, then a slot for each request, in order.
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
        self.history = [Slot(number, conversation=[]) for number in range(count)]

    @property
    def slots(self) -> list[Slot]:
        """The last slot of each number."""
        return list({slot.number: slot for slot in self.history}.values())

    # --- which slot a request gets, and what it reuses ----------------------------------

    def begin(self, tokens: Tokens) -> int:
        """Opens a request in a free slot and returns its number.

        The tokens to compute, at least one, are `remaining` of that slot.

        Raises:
            NoSlot: no slot is free.
        """
        check_tokens(tokens)
        if not tokens:
            raise ValueError("the request is empty; there is nothing to compute")
        free = [slot for slot in self.slots if not slot.in_use]
        if not free:
            raise NoSlot(f"all {len(self.slots)} slots are in use")
        chosen = min(free, key=lambda slot: self.rank(slot, tokens))
        prefix = self.copy_best(chosen, tokens) if self.several_users else chosen.tokens
        reuse = min(count_common(tokens, prefix), len(tokens) - 1)
        resumes = reuse > 0 and self.cache.can_resume(chosen.number, reuse)
        computed = self.cut(chosen.number, reuse if resumes else 0)
        self.history.append(Slot(chosen.number, list(tokens), computed, in_use=True))
        return chosen.number

    def rank(self, slot: Slot, tokens: Tokens) -> tuple[bool, int, int]:
        """Returns the rank of a free slot for a request, which gets the least.

        One user: the longest common prefix is first, then the lowest number. Several
        users: a slot whose tokens are all in the common prefix is first, if no other slot
        has a longer one; then the slot that was given longest ago.
        """
        common = count_common(tokens, slot.tokens)
        if not self.several_users:
            return False, -common, slot.number
        matched = 0 < common == slot.computed == self.count_best(tokens)
        return not matched, 0 if matched else self.history.index(slot), slot.number

    def count_best(self, tokens: Tokens) -> int:
        """Returns the length of the longest prefix that any slot has of a request."""
        return max(count_common(tokens, slot.tokens) for slot in self.slots)

    def copy_best(self, target: Slot, tokens: Tokens) -> Tokens:
        """Gives a slot the longest prefix that any slot shares with a request.

        A slot that has it keeps its tokens. Another one gets a copy from the first slot
        that has it, or nothing if the cache cannot copy.

        Returns:
            The tokens that the slot holds now.
        """
        best = self.count_best(tokens)
        having = [
            slot for slot in self.slots if count_common(tokens, slot.tokens) == best
        ]
        if target in having:
            return target.tokens
        copied = self.copy(having[0].number, target.number, best)
        return tokens[:best] if copied else []

    # --- a pass -------------------------------------------------------------------------

    def extend(self, number: int, tokens: Tokens) -> None:
        """Adds generated tokens to those that remain to be computed."""
        check_tokens(tokens)
        self.get_open(number).conversation += tokens

    def reserve(self, number: int, count: int) -> range:
        """Returns the positions of the next `count` tokens.

        If the context is too small for them, the middle of the conversation goes first.
        The slot holds the tokens once they are computed; see `commit`.
        """
        slot = self.get_open(number)
        if count not in range(1, min(len(slot.remaining), self.context - self.keep) + 1):
            raise ValueError(f"{count} tokens cannot be computed now")
        if slot.computed + count > self.context:
            self.discard(slot, self.find_end(slot, count))
        slot.reserved = count
        return range(slot.computed, slot.computed + count)

    def find_end(self, slot: Slot, count: int) -> int:
        """Returns the end of the middle that goes: the least that leaves enough room.

        Enough is room for `count` tokens and for half of those that are not kept.
        """
        room = max(count, (self.context - self.keep) // 2)
        ends = range(self.keep, slot.computed + 1)
        return min(
            end for end in ends if self.keep + slot.computed - end + room <= self.context
        )

    def discard(self, slot: Slot, end: int) -> None:
        """Drops the tokens in [keep, end) from the conversation.

        The tokens behind move up. If the cache cannot do that, the slot holds nothing,
        and the whole rest of the conversation remains to be computed.
        """
        removed = self.remove(slot.number, self.keep, end)
        del slot.conversation[self.keep : end]
        slot.computed = slot.computed - (end - self.keep) if removed else 0

    def commit(self, number: int, count: int) -> None:
        """Adds the `count` tokens that were reserved last; they have been computed."""
        slot = self.get_open(number)
        if count != slot.reserved:
            raise ValueError(f"{count} tokens were computed, not {slot.reserved}")
        slot.computed, slot.reserved = slot.computed + count, 0

    def close(self, number: int) -> int:
        """Frees the slot, which keeps the computed tokens; returns how many these are.

        Cancelling a request is the same.
        """
        slot = self.get_open(number)
        slot.computed = self.cut(number, slot.computed)
        slot.conversation, slot.reserved, slot.in_use = slot.tokens, 0, False
        return slot.computed

    def get_open(self, number: int) -> Slot:
        slots = [slot for slot in self.slots if slot.number == number and slot.in_use]
        if not slots:
            raise ValueError(f"no request is open in slot {number}")
        return slots[0]

    # --- the cache, which may refuse ----------------------------------------------------

    def copy(self, source: int, target: int, length: int) -> bool:
        """Copies in the cache; False if it refuses, and a part may be copied."""
        try:
            self.cache.copy_prefix(source, target, length)
        except REFUSALS:
            return False
        return True

    def remove(self, number: int, begin: int, end: int | None) -> bool:
        """Removes from the cache; False if it refuses, and all tokens are removed."""
        try:
            self.cache.remove(number, begin, end)
        except REFUSALS:
            self.cache.remove(number, 0, None)
            return False
        return True

    def cut(self, number: int, length: int) -> int:
        """Cuts a sequence to `length` tokens, or to none if the cache cannot; returns how
        many are left."""
        return length if self.remove(number, length, None) else 0
