"""Mistakes in the reference of unified caches."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.errors import CacheFull
from lockstep.reference.recurrent import RecurrentCache, Slot
from lockstep.reference.token import SharedToken

Replace = Callable[[Any, str, Any], None]


def change_rule(replace: Replace, rule: Callable[..., bool]) -> None:
    """Another rule of visibility: rule(cache, query, token, row)."""

    def visible(self: CausalCache, row: int) -> list[SharedToken]:
        assert self.current is not None
        query, sequence = self.current.positions[row], self.current.sequences[row]
        ahead = row in self.current.exceptions
        own = [token for token in self.tokens if sequence in token.sequences]
        return [token for token in own if rule(self, query, token, ahead)]

    replace(CausalCache, "visible", visible)


def sees_the_next(replace: Replace) -> None:
    """Of what is stored, one token too far ahead: only a step back shows it."""
    change_rule(replace, lambda _, query, token, ahead: token.position <= query + 1)


def strictly_before(replace: Replace) -> None:
    """A query does not see itself: the same in every cut, after every removal."""
    change_rule(replace, lambda _, query, token, ahead: token.position < query or ahead)


def window_counts_itself(replace: Replace) -> None:
    def rule(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
        near = token.position > query - cache.window or token.position == query
        return near and (token.position <= query or ahead)

    change_rule(replace, rule)


def chunks_are_shifted(replace: Replace) -> None:
    """Chunks begin at 1, 1 + chunk, …: nothing but the mask shows it."""

    def rule(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
        before = (query - 1) % cache.chunk if cache.chunk != inf else query
        return (token.position <= query or ahead) and token.position >= query - before

    change_rule(replace, rule)


def middle_moves_too_far(replace: Replace) -> None:
    """Two tokens taken out of the middle: what follows moves up by three."""
    remove = CausalCache.remove

    def wrong(self: CausalCache, sequence: int, begin: int, end: int | None) -> None:
        remove(self, sequence, begin, end)
        if end is not None and end - begin == 2:
            self.tokens = [
                token._replace(position=token.position - 1)
                if sequence in token.sequences and token.position > begin
                else token
                for token in self.tokens
            ]

    replace(CausalCache, "remove", wrong)


def end_of_another_goes(replace: Replace) -> None:
    """To remove the end of one sequence takes shared tokens from all."""

    def drop(self: CausalCache, sequence: int, begin: float, end: float) -> None:
        self.tokens = [
            token
            for token in self.tokens
            if not (sequence in token.sequences and begin <= token.position < end)
        ]

    replace(CausalCache, "drop", drop)


def copies_count_twice(replace: Replace) -> None:
    def get_refusal(self: CausalCache, batch: Batch) -> CacheFull | None:
        held = sum(len(token.sequences) for token in self.tokens)
        return CacheFull("full") if self.room - held < len(batch) else None

    replace(CausalCache, "get_refusal", get_refusal)


def full_one_too_early(replace: Replace) -> None:
    """Always, however the tokens came."""

    def get_refusal(self: CausalCache, batch: Batch) -> CacheFull | None:
        room = self.room - len(self.tokens)
        return CacheFull("full") if room <= len(batch) else None

    replace(CausalCache, "get_refusal", get_refusal)


def load_shares(replace: Replace) -> None:
    """What was saved is the cache itself, whatever becomes of it."""

    def load(self: CausalCache, saved: Any) -> None:
        self.close()
        self.tokens = list(saved.tokens)

    replace(CausalCache, "save", lambda self: self)
    replace(CausalCache, "load", load)


def evicts(replace: Replace, more: int) -> None:
    def evict(self: CausalCache, batch: Batch) -> None:
        for sequence in range(self.sequences):
            own = batch.get_positions(sequence)
            low = min(own) if own else self.get_end(sequence)
            self.drop(sequence, 0, low - self.memory + more)

    replace(CausalCache, "evict", evict)


def evicts_early(replace: Replace) -> None:
    evicts(replace, 1)


def evicts_late(replace: Replace) -> None:
    evicts(replace, -1)


def the_idle_forget_nothing(replace: Replace) -> None:
    """Only the sequences of the batch let go: the others fill the cache."""

    def evict(self: CausalCache, batch: Batch) -> None:
        for sequence in set(batch.sequences):
            low = min(batch.get_positions(sequence))
            self.drop(sequence, 0, low - self.memory)

    replace(CausalCache, "evict", evict)


def last_of_the_batch_counts(replace: Replace) -> None:
    """Eviction goes by the last position of a batch, not by its first."""

    def evict(self: CausalCache, batch: Batch) -> None:
        for sequence in range(self.sequences):
            own = batch.get_positions(sequence)
            low = max(own) if own else self.get_end(sequence)
            self.drop(sequence, 0, low - self.memory)

    replace(CausalCache, "evict", evict)


def resumes_too_often(replace: Replace) -> None:
    def can_resume(self: CausalCache, sequence: int, position: int) -> bool:
        if self.memory == inf:
            return True
        stored = [token.position for token in self.get_tokens(sequence)]
        return bool(stored) and position <= max(stored) + 1

    replace(CausalCache, "can_resume", can_resume)


def resumes_too_seldom(replace: Replace) -> None:
    def can_resume(self: CausalCache, sequence: int, position: int) -> bool:
        if self.memory == inf:
            return True
        stored = [token.position for token in self.get_tokens(sequence)]
        return bool(stored) and position <= max(stored)

    replace(CausalCache, "can_resume", can_resume)


def chunk_ends_at_the_batch(replace: Replace) -> None:
    """A batch that crosses into the next chunk sees on from where it began."""

    def rule(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
        assert cache.current is not None
        first = query - query % cache.chunk if cache.chunk != inf else 0
        first = min(first, min(cache.current.positions))
        return (token.position <= query or ahead) and token.position >= first

    change_rule(replace, rule)


def states_stay_shared(replace: Replace) -> None:
    replace(RecurrentCache, "is_shared", lambda self, sequence: False)


def checkpoint_is_the_state(replace: Replace) -> None:
    """A checkpoint that goes on with its state, once there is a second one."""

    def put_checkpoint(self: RecurrentCache, slot: Slot) -> None:
        if self.interval:
            slot.checkpoints.append(slot.read)
            slot.checkpoints = slot.checkpoints[-self.checkpoint_count :]

    replace(RecurrentCache, "put_checkpoint", put_checkpoint)


def cut_state_keeps_its_end(replace: Replace) -> None:
    """The cells go, what was read of them stays read."""

    def remove(self: RecurrentCache, sequence: int, begin: int, end: int | None) -> None:
        CausalCache.remove(self, sequence, begin, end)
        if begin == 0:
            self.slots.pop(sequence, None)

    replace(RecurrentCache, "remove", remove)


MISTAKES = {
    "sees-the-next": ("causal", sees_the_next),
    "strictly-before": ("causal", strictly_before),
    "middle-moves-too-far": ("causal", middle_moves_too_far),
    "end-of-another-goes": ("causal", end_of_another_goes),
    "copies-count-twice": ("causal", copies_count_twice),
    "full-one-too-early": ("causal", full_one_too_early),
    "load-shares": ("causal", load_shares),
    "window-counts-itself": ("swa", window_counts_itself),
    "evicts-early": ("swa", evicts_early),
    "last-of-the-batch-counts": ("swa", last_of_the_batch_counts),
    "the-idle-forget-nothing": ("swa", the_idle_forget_nothing),
    "resumes-too-seldom": ("swa", resumes_too_seldom),
    "evicts-late": ("swa-memory", evicts_late),
    "resumes-too-often": ("swa-memory", resumes_too_often),
    "chunks-are-shifted": ("chunked", chunks_are_shifted),
    "chunk-ends-at-the-batch": ("chunked", chunk_ends_at_the_batch),
    "states-stay-shared": ("recurrent", states_stay_shared),
    "checkpoint-is-the-state": ("recurrent", checkpoint_is_the_state),
    "cut-state-keeps-its-end": ("recurrent", cut_state_keeps_its_end),
}
