"""The types of groups: which blocks each type keeps, and where its hits may end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.impl.shared.block_pool import BlockPool, list_held

Table = list[int | None]
"""The block of each block-sized range of a request's positions; None without a block."""


class Group(ABC):
    """The blocks of layers that attend to the same positions.

    Args:
        number: the number of the group.
        block: number of positions of a block.
        pool: the pool of all groups.
        unit: number of tokens from one key to the next.

    Attributes:
        lags: whether a step may leave out the layers.
        ranks: number of ranks across which the positions are distributed; 1 if every
            rank stores all positions.
        interleave: number of consecutive positions on a rank.
    """

    lags, ranks, interleave = False, 1, 1

    def __init__(self, number: int, block: int, pool: BlockPool, unit: int) -> None:
        self.number, self.block, self.pool, self.unit = number, block, pool, unit

    @abstractmethod
    def first(self, computed: int) -> int:
        """Returns the first position that a request needs after `computed` tokens."""

    @abstractmethod
    def find(self, keys: Sequence[bytes], most: int) -> int:
        """Returns the longest hit of at most `most` tokens.

        Args:
            keys: the keys of the request.
            most: a multiple of the unit.
        """

    def get(self, keys: Sequence[bytes], end: int) -> int | None:
        """Returns the block in which a prefix of `end` tokens ends; None if it cannot be
        hit."""
        return self.pool.find(self.number, keys[end // self.unit - 1])

    def claim(self, keys: Sequence[bytes], hit: int) -> Table:
        """Makes the table of a request that reuses `hit` tokens."""
        if not hit:
            return []
        table: Table = [None] * (self.first(hit) // self.block)
        for begin in range(len(table) * self.block, hit, self.block):
            table.append(self.get(keys, min(hit, begin + self.block)))
        return table

    def locate(self, table: Table, position: int) -> tuple[int, int]:
        """Returns the block of a position, and its index in the block."""
        block = table[position // self.block]
        assert block is not None
        return block, position % self.block

    def list_slots(
        self, table: Table, begin: int, end: int, rank: int
    ) -> list[int | None]:
        """Lists the slots of the positions [begin, end) on a rank; None for positions of
        other ranks. A block takes block / ranks slots of each rank."""
        size, slots = self.block // self.ranks, list[int | None]()
        for position in range(begin, end):
            block, index = self.locate(table, position)
            turn, offset = divmod(index, self.interleave)
            slot = block * size + turn // self.ranks * self.interleave + offset
            is_here = self.ranks == 1 or turn % self.ranks == rank
            slots.append(slot if is_here else None)
        return slots

    def list_written(self, start: int, end: int, length: int) -> list[int]:
        """Lists the table indexes of the blocks to which the step [start, end) writes;
        the positions from `length` on are drafts."""
        return list(range(start // self.block, (end - 1) // self.block + 1))

    def publish(self, keys: Sequence[bytes], table: Table, begin: int, end: int) -> None:
        """Publishes the computed tokens [begin, end), so that other requests can hit
        them."""
        for stop in range(begin - begin % self.unit + self.unit, end + 1, self.unit):
            block = table[(stop - 1) // self.block]
            if block is not None:
                filled = (stop - 1) % self.block + 1
                self.pool.publish(self.number, keys[stop // self.unit - 1], block, filled)

    def let_go(self, table: Table, begin: int, end: int) -> None:
        """Releases the blocks at the table indexes [begin, end)."""
        gone = list_held(table[begin:end])
        self.pool.release(reversed(gone))
        table[begin:end] = [None] * (end - begin)

    def cut(self, table: Table, end: int) -> None:
        """Releases the blocks after the first `end` tokens."""
        last = -(-end // self.block)
        self.pool.release(reversed(list_held(table[last:])))
        del table[last:]

    def can_go_back(self, table: Table, to: int, computed: int) -> bool:
        """Returns whether all blocks that are needed after `to` tokens are present.

        Args:
            table: the table.
            to: number of tokens, of which the last may be drafts.
            computed: number of computed tokens without drafts.
        """
        places = range(self.first(to) // self.block, -(-to // self.block))
        return all(table[index] is not None for index in places)


class FullGroup(Group):
    """A group in which each token attends to all tokens before it."""

    def first(self, computed: int) -> int:
        return 0

    def find(self, keys: Sequence[bytes], most: int) -> int:
        entries, step = self.pool.entries[self.number], self.block // self.unit
        number = step - 1
        last = most // self.unit
        while number < last and keys[number] in entries:
            number += step
        hit = number + 1 - step  # in units
        for partly in range(min(last, hit + step - 1), hit, -1):
            if keys[partly - 1] in entries:
                return partly * self.unit
        return hit * self.unit


class WindowedGroup(Group):
    """A group in which each token attends to the tokens before it in a window or in its
    chunk."""

    def __init__(
        self, number: int, block: int, pool: BlockPool, unit: int, width: int
    ) -> None:
        super().__init__(number, block, pool, unit)
        self.width = width

    def find(self, keys: Sequence[bytes], most: int) -> int:
        hit: int | None = most
        while hit:
            shorter = self.find_shorter(keys, hit)
            if shorter is None:
                return hit
            hit = shorter
        return 0

    def find_shorter(self, keys: Sequence[bytes], hit: int) -> int | None:
        """Returns a shorter hit to try; None if all blocks that `hit` needs are present.

        The shorter hit ends in the last block that `hit` needs and that is missing. A hit
        that ends inside a block always needs this block, because the request continues to
        fill it, and a prefix that is later published for the block includes all its
        positions.
        """
        first = self.first(hit)
        if (first < hit or hit % self.block) and self.get(keys, hit) is None:
            return hit - self.unit
        for end in range((hit - 1) // self.block * self.block, first, -self.block):
            if self.get(keys, end) is None:
                return end - self.unit
        return None


class SlidingGroup(WindowedGroup):
    def first(self, computed: int) -> int:
        return max(0, computed - self.width + 1)


class ChunkedGroup(WindowedGroup):
    def first(self, computed: int) -> int:
        return computed - computed % self.width


class StateGroup(Group):
    """A group of recurrent states, which are kept after the last token and at the ends of
    blocks."""

    def first(self, computed: int) -> int:
        return max(0, computed - 1)

    def find(self, keys: Sequence[bytes], most: int) -> int:
        for hit in range(most, 0, -self.unit):
            if self.get(keys, hit) is not None:
                return hit
        return 0

    def list_slots(
        self, table: Table, begin: int, end: int, rank: int
    ) -> list[int | None]:
        return []  # states lie in their blocks, on all ranks

    def get_index(self, end: int, length: int) -> int:
        """Returns the table index of the state after `end` tokens and drafts.

        The states after drafts follow the state after the last of `length` tokens.
        """
        last = min(end, length)
        return (last - 1) // self.block + end - last

    def list_written(self, start: int, end: int, length: int) -> list[int]:
        """Lists the table indexes of the states that a step writes.

        A step writes the state after its last token, a state after each draft, and the
        state at the last end of a block within the tokens, which other requests may hit.
        If the step overwrites the state at its begin, this state is listed, too.
        """
        last = self.get_index(min(end, length), length)
        boundary = last - 1 if last * self.block > start else last
        begun = start // self.block if start % self.block else last
        drafts = range(last + 1, self.get_index(end, length) + 1)
        return sorted({begun, boundary, last, *drafts})

    def confirm(self, table: Table, computed: int, length: int, kept: int) -> None:
        """Moves the states after confirmed drafts to the entries of their positions.

        Keeps the state after the last of them, and states at the ends of blocks.

        Args:
            table: the table.
            computed: number of computed tokens and drafts.
            length: number of tokens.
            kept: number of confirmed drafts; the other drafts are dropped.
        """
        if computed <= length:
            return
        first = self.get_index(length, length) + 1
        states = table[first:]
        del table[first:]
        for end, state in enumerate(states, length + 1):
            if end == length + kept or (end < length + kept and end % self.block == 0):
                index = (end - 1) // self.block
                gone, table[index:] = table[index:], [state]
            else:
                gone = [state]
            self.pool.release(list_held(gone))

    def publish(self, keys: Sequence[bytes], table: Table, begin: int, end: int) -> None:
        first = begin - begin % self.block + self.block
        for stop in range(first, end + 1, self.block):
            block = table[stop // self.block - 1]
            if block is not None:
                self.pool.publish(self.number, keys[stop // self.unit - 1], block, 1)

    def can_go_back(self, table: Table, to: int, computed: int) -> bool:
        if to > computed:
            return True  # after a draft; see `confirm`
        return to == computed and super().can_go_back(table, to, computed)


def make_group(
    number: int, config: Mapping[str, Any], pool: BlockPool, unit: int
) -> Group:
    """Makes the group of an entry of `groups`; see `impl.shared.paged.BlockManager`."""
    kind, block = config["type"], config["block"]
    if kind == "sliding":
        return SlidingGroup(number, block, pool, unit, config["width"])
    if kind == "chunked":
        return ChunkedGroup(number, block, pool, unit, config["width"])
    if kind == "state":
        return StateGroup(number, block, pool, unit)
    group = FullGroup(number, block, pool, unit)
    group.lags = config.get("lags", False)
    group.ranks = config.get("ranks", 1)
    group.interleave = config.get("interleave", 1)
    return group
