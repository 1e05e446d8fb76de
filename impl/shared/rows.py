"""Determines which rows of a batch move between slots, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import add as plus

SPARE = -1
"""The number of a spare slot for one row, outside the pool."""


def choose_first(
    wanted: Sequence[int | None], sizes: Sequence[int], slots: int
) -> int | None:
    """Chooses the slot of row 0 so that as few tokens as possible move.

    Args:
        wanted: for each row, its present slot; None if the row is in no slot.
        sizes: for each row, its number of tokens.
        slots: number of slots.

    Returns:
        None if there are fewer slots than rows.
    """
    last = slots - len(wanted)
    if last < 0:
        return None
    staying: Counter[int] = Counter()
    for row, (slot, size) in enumerate(zip(wanted, sizes, strict=True)):
        if slot is not None and 0 <= slot - row <= last:
            staying[slot - row] += size
    return max(staying, key=staying.__getitem__) if staying else 0


def order_moves(moves: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Orders moves so that no move overwrites the source of a later move.

    Args:
        moves: target slot → source slot, which is another slot.

    Yields:
        (source, target). A cycle begins with a move to SPARE and ends with a move from
            SPARE.
    """
    sources = dict(moves)
    readers = Counter(sources.values())
    free = [target for target in sources if not readers[target]]
    while sources:
        if not free:  # all that is left are cycles
            target, last = next(
                (target, reader)
                for reader, target in sources.items()
                if target in sources
            )
            yield target, SPARE
            sources[last] = SPARE
            free.append(target)
        target = free.pop()
        source = sources.pop(target)
        yield source, target
        readers[source] -= 1
        if not readers[source] and source in sources:
            free.append(source)


def cut_ring(begin: int, count: int, room: int) -> Iterator[tuple[int, int, int]]:
    """Cuts tokens where a ring wraps.

    Args:
        begin: position of the first token.
        count: number of tokens. Only the last `room` of them fit.
        room: number of columns of the ring; position p is in column p mod room.

    Yields:
        (column, first, end): write the tokens [first, end) to the columns from `column`
        on.
    """
    first = max(0, count - room)
    while first < count:
        column = (begin + first) % room
        end = min(count, first + room - column)
        yield column, first, end
        first = end


def add(numbers: Sequence[int], added: Sequence[int]) -> tuple[int, ...]:
    """Adds two numbers for each row."""
    return tuple(map(plus, numbers, added))
