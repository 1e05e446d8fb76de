"""Assigns requests to the sequences of one cache, and reuses common prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .errors import CacheFull, NotSupported, Shared
from .layers import Tokens, check_tokens, count_common


class Cache(Protocol):
    """The cache operations that `Slots` calls; `CausalCache`, for example, has them."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def remove(self, sequence: int, begin: int, end: int | None) -> None: ...
    def can_resume(self, sequence: int, position: int) -> bool: ...


REFUSALS = (CacheFull, NotSupported, Shared)
"""The errors that a cache raises if it cannot cut or copy a sequence."""


class NoSlot(Exception):
    """Every slot is in use."""


@dataclass(eq=False)
class Slot:
    """One sequence of the cache, from the start of a request to the start of the next
    request.

    Attributes:
        number: the number of the sequence.
        conversation: the tokens of the request, including generated tokens. The slot
            holds the first `computed` tokens; the rest remains to be computed.
        computed: number of tokens that the slot holds; token number p has position p.
        reserved: number of remaining tokens whose positions are reserved.
        in_use: whether the request is open.
    """

    number: int
    conversation: list[int]
    computed: int = 0
    reserved: int = 0
    in_use: bool = False

    @property
    def tokens(self) -> list[int]:
        """The tokens in the slot."""
        return self.conversation[: self.computed]

    @property
    def remaining(self) -> list[int]:
        """The tokens that remain to be computed."""
        return self.conversation[self.computed :]


class Slots:
    """One slot for each sequence of the cache.

    Args:
        cache: an empty cache.
        count: number of sequences of the cache.
        context: maximum number of tokens in a slot.
        keep: number of tokens at the beginning of a conversation that stay when tokens
            in the middle are discarded to fit the context.
        several_users: if true, a request that diverges from a stored conversation gets
            another slot and a copy of the common prefix. If false, the request replaces
            the rest of the conversation in the slot with the longest common prefix.

    Attributes:
        history: one empty slot for each number, then one slot for each request, in
            order.
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
            raise ValueError(f"keep must be in 0 … {context - 1}, not {keep}")
        self.cache = cache
        self.context, self.keep = context, keep
        self.several_users = several_users
        self.history = [Slot(number, conversation=[]) for number in range(count)]

    @property
    def slots(self) -> list[Slot]:
        """The latest slot of each number."""
        return list({slot.number: slot for slot in self.history}.values())

    # --- which slot a request gets, and what it reuses ----------------------------------

    def begin(self, tokens: Tokens) -> int:
        """Opens a request in a free slot and returns the number of the slot.

        The `remaining` tokens of the slot, at least one, must be computed.

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
        """Returns a free slot's rank for a request; the lowest rank gets the request.

        With one user, the slot with the longest common prefix ranks first; ties go to the
        lowest number. With several users, a slot ranks first if all its tokens are in the
        common prefix and no slot has a longer common prefix; otherwise the slot that was
        assigned longest ago ranks first.
        """
        common = count_common(tokens, slot.tokens)
        if not self.several_users:
            return False, -common, slot.number
        matched = 0 < common == slot.computed == self.count_best(tokens)
        return not matched, 0 if matched else self.history.index(slot), slot.number

    def count_best(self, tokens: Tokens) -> int:
        """Returns the length of the longest prefix that a request shares with a slot."""
        return max(count_common(tokens, slot.tokens) for slot in self.slots)

    def copy_best(self, target: Slot, tokens: Tokens) -> Tokens:
        """Gives `target` the longest prefix that any slot shares with a request. If
        `target` already has this prefix, it keeps all its tokens. Otherwise the prefix is
        copied from the first slot that holds it; if the cache refuses the copy, `target`
        has no tokens to reuse.

        Returns:
            The tokens that `target` now holds.
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
        """Appends generated tokens to the conversation; they remain to be computed."""
        check_tokens(tokens)
        self.get_open(number).conversation += tokens

    def reserve(self, number: int, count: int) -> range:
        """Reserves and returns the positions of the next `count` tokens.

        If the context has no room for these tokens, tokens in the middle of the
        conversation are discarded first. `commit` adds the reserved tokens to the slot.
        """
        slot = self.get_open(number)
        if count not in range(1, min(len(slot.remaining), self.context - self.keep) + 1):
            raise ValueError(f"{count} tokens cannot be computed now")
        if slot.computed + count > self.context:
            self.discard(slot, self.find_end(slot, count))
        slot.reserved = count
        return range(slot.computed, slot.computed + count)

    def find_end(self, slot: Slot, count: int) -> int:
        """Returns the end of the range [keep, end) to discard.

        It is the smallest end that leaves room for `count` tokens and for half of
        (context - keep) tokens.
        """
        room = max(count, (self.context - self.keep) // 2)
        ends = range(self.keep, slot.computed + 1)
        return min(
            end for end in ends if self.keep + slot.computed - end + room <= self.context
        )

    def discard(self, slot: Slot, end: int) -> None:
        """Drops the tokens in [keep, end) from the conversation.

        The tokens from `end` on move to the positions from `keep` on. If the cache
        refuses, the slot is emptied, and all tokens left in the conversation remain to be
        computed.
        """
        removed = self.remove(slot.number, self.keep, end)
        del slot.conversation[self.keep : end]
        slot.computed = slot.computed - (end - self.keep) if removed else 0

    def commit(self, number: int, count: int) -> None:
        """Adds the `count` reserved tokens to the slot, after they were computed."""
        slot = self.get_open(number)
        if count != slot.reserved:
            raise ValueError(f"{count} tokens were computed, not {slot.reserved}")
        slot.computed, slot.reserved = slot.computed + count, 0

    def close(self, number: int) -> int:
        """Closes the request and frees its slot; also cancels a request.

        Returns:
            The number of computed tokens. They stay in the slot for later requests.
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
        """Copies a prefix in the cache.

        Returns:
            False if the cache refuses; a part of the prefix may have been copied.
        """
        try:
            self.cache.copy_prefix(source, target, length)
        except REFUSALS:
            return False
        return True

    def remove(self, number: int, begin: int, end: int | None) -> bool:
        """Removes the tokens in [begin, end) from a sequence of the cache.

        Returns:
            False if the cache refuses; then all tokens of the sequence are removed.
        """
        try:
            self.cache.remove(number, begin, end)
        except REFUSALS:
            self.cache.remove(number, 0, None)
            return False
        return True

    def cut(self, number: int, length: int) -> int:
        """Cuts a sequence to `length` tokens, or to 0 if the cache refuses.

        Returns:
            The number of tokens left.
        """
        return length if self.remove(number, length, None) else 0
