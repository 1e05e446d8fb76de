"""The causal cache of many sequences in one pool, with window, memory or chunk."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from .batch import (
    Batch,
    check_copy,
    check_position,
    check_range,
)
from .errors import CacheFull, NotSupported, Shared, refuse
from .token import SharedToken


class CausalCache:
    """Attention over the tokens of several sequences, at positions that the caller gives.

    The class covers four kinds of cache. The kind causal sets none of `window`, `memory`
    and `chunk`; swa sets `window` and `memory` to the same number; swa-memory sets
    `window` and `memory`; chunked sets `chunk`.

    A token has three coordinates (t, y, x), as in Qwen-VL: t is its position, which
    windows, evictions and removals use. Several tokens of an image may have one position;
    they are in the order (t, y, x). In text, y = x = t.

    Args:
        sequences: number of sequences, numbered from 0.
        capacity: number of tokens for each sequence.
        batch: maximum number of rows of a pass.
        window: a query at position q sees positions from q - window on; 0 or None for no
            limit.
        memory: a pass at position p keeps the positions from p - memory on; not smaller
            than the window; 0 or None for no limit.
        chunk: a query sees only positions of its own chunk; 0 or None for no limit.
        padding: the capacity of the pool, in tokens, is rounded up to a multiple of this.
        shift: whether keys can be rotated to another position, so that the middle of a
            sequence can be removed.

    Raises:
        ValueError: the memory is smaller than the window.
    """

    def __init__(
        self,
        sequences: int,
        capacity: int,
        batch: int,
        window: int | None = None,
        memory: int | None = None,
        chunk: int | None = None,
        padding: int = 1,
        shift: bool = True,
    ) -> None:
        self.sequences, self.capacity, self.batch = sequences, capacity, batch
        self.window = window or inf
        self.memory = memory or inf
        self.chunk = chunk or inf
        self.shift = shift
        if self.memory != inf and sequences > 1:
            self.memory = max(self.memory, self.window + 1)  # room for a stop token
        if self.memory >= capacity:
            self.memory = inf
        if self.memory < self.window:
            raise ValueError(
                f"memory {memory} is smaller than the window of {window or 'all tokens'}"
            )
        room = sequences * capacity
        if self.memory != inf:
            room = sequences * int(self.memory) + batch
        self.room = -(-room // padding) * padding
        self.tokens: list[SharedToken] = []
        self.current: Batch | None = None

    # --- a forward pass -----------------------------------------------------------------

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """Adds one token for each row and opens the pass that `visible` reads.

        Args:
            batch: the rows.
            tags: one tag for each row.
            reserve: True to reserve memory. Then no token is added, and no pass is open.

        Raises:
            CacheFull, NotSupported, or a group of both: the batch is refused. Evicted
                tokens stay evicted, and no pass is open.
        """
        batch.check(self.sequences, self.batch)
        self.close()
        reasons = self.list_refusals(batch, reserve)
        if not reserve:
            self.evict(batch)
        refuse(reasons)
        if not reserve:
            self.add(batch, tags)

    def close(self) -> None:
        """Ends the pass."""
        self.current = None

    def evict(self, batch: Batch) -> None:
        """Drops tokens more than `memory` positions before their sequence's next token.

        Sequences that are not in the batch lose such tokens too.
        """
        self.tokens = self.get_kept(batch)

    def get_kept(self, batch: Batch) -> list[SharedToken]:
        """Returns the tokens that stay after the evictions for a batch.

        The `sequences` of each returned token are the sequences that keep it.
        """
        if self.memory == inf:
            return self.tokens
        first = {
            sequence: min(batch.get_positions(sequence) or [self.get_end(sequence)])
            - self.memory
            for sequence in range(self.sequences)
        }
        stored = [
            token._replace(
                sequences=frozenset(
                    owner for owner in token.sequences if token.position >= first[owner]
                )
            )
            for token in self.tokens
        ]
        return [token for token in stored if token.sequences]

    def list_refusals(self, batch: Batch, reserve: bool) -> list[Exception]:
        """Returns CacheFull if the batch does not fit after its evictions.

        A pass with `reserve` needs no room.
        """
        free = self.room - len(self.get_kept(batch))
        if reserve or len(batch) <= free:
            return []
        return [CacheFull(f"{len(batch)} tokens, and room for {free}")]

    def add(self, batch: Batch, tags: Sequence[int]) -> None:
        rows = zip(tags, batch.positions, batch.sequences, strict=True)
        for row, (tag, position, sequence) in enumerate(rows):
            owners, offset = frozenset({sequence}), batch.get_offset(row)
            self.tokens.append(SharedToken(tag, position, owners, offset))
        self.current = batch

    def visible(self, row: int) -> list[SharedToken]:
        """Returns the tokens that a row of the open pass may attend to.

        These are the tokens of its sequence that lie in its window and its chunk, up to
        its own coordinates in the order (t, y, x). A row in `exceptions` also sees later
        tokens.
        """
        assert self.current is not None, "no pass is open"
        query, sequence = self.current.positions[row], self.current.sequences[row]
        first = max(query - self.window, query - query % self.chunk)
        last: tuple[Any, ...] = query, self.current.get_offset(row)
        if row in self.current.exceptions:
            last = (inf,)
        return [
            token
            for token in self.tokens
            if sequence in token.sequences
            and first <= token.position
            and (token.position, token.offset) <= last
        ]

    # --- between passes -----------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Replaces `target` by the tokens of `source` at positions before `length`.

        Both sequences then share these tokens.
        """
        check_copy(source, target, length, self.sequences)
        self.close()
        self.drop(target, 0, inf)
        self.tokens = [
            token._replace(sequences=token.sequences | {target})
            if source in token.sequences and token.position < length
            else token
            for token in self.tokens
        ]

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the tokens of a sequence in [begin, end); later tokens close the gap.

        All three coordinates of a later token move by the same distance, because y and x
        are counted from the first position of their image (`get_vision_position_ids` in
        transformers, `set_position_mrope_2d` in llama.cpp).

        Args:
            sequence: the sequence that loses the tokens.
            begin: first position of the gap.
            end: position after the gap; None to remove all tokens from `begin` on.

        Raises:
            Shared, NotSupported: a token after the gap cannot move, even if the gap is
                empty. Nothing changes.
        """
        check_range(sequence, begin, end, self.sequences)
        following = [
            token
            for token in self.get_tokens(sequence)
            if end is not None and token.position >= end
        ]
        if any(len(token.sequences) > 1 for token in following):
            raise Shared(f"sequence {sequence} shares tokens that would have to move")
        if following and not self.shift:
            raise NotSupported("this cache cannot rotate keys to another position")
        self.close()
        self.drop(sequence, begin, inf if end is None else end)
        if end is not None:
            self.tokens = [
                token._replace(position=token.position + begin - end)
                if sequence in token.sequences and token.position >= end
                else token
                for token in self.tokens
            ]

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether all tokens that a pass from `position` on sees are stored.

        Returns True if `memory` has no limit.
        """
        check_position(sequence, position, self.sequences)
        if self.memory == inf:
            return True
        stored = [token.position for token in self.get_tokens(sequence)]
        if not stored:
            return False
        window_begin = max(0, position - self.window)
        return window_begin >= min(stored) and position <= self.get_end(sequence)

    def save(self) -> Any:
        """Returns the content, for `load`."""
        return list(self.tokens)

    def load(self, saved: Any) -> None:
        """Replaces the content by the result of `save`."""
        self.close()
        self.tokens = list(saved)

    # --- what a sequence holds ----------------------------------------------------------

    def get_tokens(self, sequence: int) -> list[SharedToken]:
        return [token for token in self.tokens if sequence in token.sequences]

    def get_end(self, sequence: int) -> int:
        """Returns the position after the stored tokens: 1 + their largest coordinate.

        This is not the number of tokens. The end is 0 without tokens.
        """
        largest = [max(token.place) for token in self.get_tokens(sequence)]
        return max(largest, default=-1) + 1

    def drop(self, sequence: int, begin: float, end: float) -> None:
        """Removes the sequence from its tokens in [begin, end).

        A token that then belongs to no sequence is removed.
        """
        remaining = [
            token._replace(sequences=token.sequences - {sequence})
            if sequence in token.sequences and begin <= token.position < end
            else token
            for token in self.tokens
        ]
        self.tokens = [token for token in remaining if token.sequences]
