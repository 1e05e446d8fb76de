"""Assigns the sequences of one cache to the requests of several users, and
reuses tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.impl.prefix.statistics import Log, Statistics, explain
from lockstep.impl.prefix.tokens import check_request, check_tokens, count_common
from lockstep.impl.shared.errors import (
    CacheFullError,
    MisuseError,
    NotSupportedError,
    SharedError,
)

REFUSALS: tuple[type[Exception], ...] = (CacheFullError, NotSupportedError, SharedError)
"""The exceptions with which our caches refuse to cut or copy a sequence."""


class NoSlotError(Exception):
    """Every slot is in use."""


class Cache(Protocol):
    """The interface of a cache of many sequences that `Slots` needs."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def remove(self, sequence: int, begin: int, end: int | None) -> None: ...
    def can_resume(self, sequence: int, position: int) -> bool: ...


@dataclass
class Slot:
    """One sequence of the cache.

    Attributes:
        tokens: the computed tokens, at positions from 0 on.
        remaining: the tokens of the open request that remain to be computed.
        reserved: number of remaining tokens that have positions.
        in_use: whether a request is open.
        used: time when a request last began; higher is later.
    """

    tokens: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    reserved: int = 0
    in_use: bool = False
    used: int = 0


class Slots:
    """One slot for each sequence of a cache.

    Args:
        cache: an empty cache of `count` sequences.
        count: number of slots.
        context: maximum number of tokens of a slot.
        keep: number of tokens at the beginning of a conversation that stay when tokens in
            its middle are removed to fit the context.
        several_users: if True, a request that diverges from a stored conversation gets
            another slot and a copy of the common prefix; if False, it continues in the
            slot of that conversation.
        refusals: the exceptions with which the cache refuses to cut or copy a sequence;
            all tokens of the sequence are then computed again.
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
            raise MisuseError(f"count must be at least 1 slot, not {count}")
        if not 0 <= keep < context:
            raise MisuseError(
                f"keep must be in 0 … {context - 1}, not {keep}: at least one of the"
                f" {context} tokens of a slot must be removable"
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
        """Opens a request in a free slot; see `get_remaining` for the tokens to compute.

        Returns:
            Number of the slot.

        Raises:
            NoSlotError: no slot is free.
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
        """Chooses the slot of a request.

        Args:
            request: its tokens.
            common: for each slot, the length of the common prefix.

        Returns:
            Number of the slot.
        """
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
        """Replaces the tokens of `target` by these tokens of `source`.

        If the cache cannot copy, `target` is empty.
        """
        slot = self.slots[target]
        try:
            self.cache.copy_prefix(source, target, len(tokens))
            slot.tokens = tokens
        except self.refusals:
            slot.tokens = []  # a partial copy is removed when the request begins

    def go(self, number: int, request: list[int]) -> tuple[int, str]:
        """Cuts a sequence to the prefix that it shares with the request, or empties it.

        Returns:
            The number of remaining tokens, and the reason why not all tokens are reused.
        """
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
        """Cuts a sequence to `length` tokens; to 0 if the cache refuses.

        Returns:
            The number of remaining tokens.
        """
        try:
            self._cache.remove(number, length, None)
        except self.refusals:
            self._cache.remove(number, 0, None)
            return 0
        return length

    def extend(self, slot: int, tokens: Iterable[int]) -> None:
        """Adds generated tokens to the tokens that remain to be computed."""
        self.get_open(slot).remaining += check_tokens(tokens)

    def close(self, slot: int) -> int:
        """Frees the slot, which keeps its computed tokens, and returns their number."""
        request = self.get_open(slot)
        request.in_use, request.remaining, request.reserved = False, [], 0
        request.tokens = request.tokens[: self.cut(slot, len(request.tokens))]
        return len(request.tokens)

    def cancel(self, slot: int) -> int:
        """Does the same as `close`, for a request that was interrupted."""
        return self.close(slot)

    # --- a pass -------------------------------------------------------------------------

    def reserve(self, slot: int, count: int) -> range:
        """Returns the positions of the next `count` remaining tokens.

        If the context is too small for these tokens, tokens in the middle of the
        conversation are removed. If the cache refuses this removal, all other tokens of
        the conversation must be computed again, so call `get_remaining` again. `commit`
        adds the reserved tokens to the slot.
        """
        request = self.get_open(slot)
        most = min(len(request.remaining), self.context - self.keep)
        if not 0 < count <= most:
            raise MisuseError(
                f"reserve: count is {count}, but must be 1 or more, at most"
                f" {len(request.remaining)} (the tokens that remain), and at most"
                f" {self.context - self.keep} (context - keep)"
            )
        if len(request.tokens) + count > self.context:
            self.discard(slot, count)
        request.reserved = count
        return range(len(request.tokens), len(request.tokens) + count)

    def discard(self, number: int, count: int) -> None:
        """Removes tokens after the first `keep` tokens.

        Half of the removable tokens are removed, or more if needed. Later tokens move to
        close the gap. If the cache refuses, the request must compute all remaining tokens
        of the slot again.
        """
        slot = self.slots[number]
        half = (self.context - self.keep) // 2
        end = self.keep + max(half, count) - (self.context - len(slot.tokens))
        kept_tokens = slot.tokens[: self.keep] + slot.tokens[end:]
        try:
            self._cache.remove(number, self.keep, end)
        except self.refusals:
            self._cache.remove(number, 0, None)
            slot.tokens, slot.remaining = [], kept_tokens + slot.remaining
        else:
            slot.tokens = kept_tokens

    def commit(self, slot: int, count: int) -> None:
        """Adds the `count` reserved tokens to the slot, after they were computed."""
        request = self.get_open(slot)
        if count != request.reserved:
            raise MisuseError(
                f"commit: {count} tokens were given, but {request.reserved} were"
                " reserved; commit exactly these, after they were computed"
            )
        request.reserved = 0
        request.tokens += request.remaining[:count]
        del request.remaining[:count]

    # --- the content of slots -----------------------------------------------------------

    def get_tokens(self, slot: int) -> list[int]:
        """Returns the computed tokens of a slot."""
        return list(self.get_slot(slot).tokens)

    def get_remaining(self, slot: int) -> list[int]:
        """Returns the tokens of the slot's request that remain to be computed."""
        return list(self.get_slot(slot).remaining)

    def get_slot(self, number: int) -> Slot:
        if not 0 <= number < len(self.slots):
            raise MisuseError(
                f"there is no slot {number}; the slots are 0 … {len(self.slots) - 1}"
            )
        return self.slots[number]

    def get_open(self, number: int) -> Slot:
        slot = self.get_slot(number)
        if not slot.in_use:
            raise MisuseError(f"no request is open in slot {number}; begin opens one")
        return slot

    def get_statistics(self) -> Statistics:
        """Returns the counts. Shared tokens count in each slot that has them.

        The bytes are 0, because the cache itself counts them.
        """
        return self.log.get(sum(len(slot.tokens) for slot in self.slots), 0)
