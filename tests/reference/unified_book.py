"""The book that the unified caches are compared with, and what is drawn for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.errors import CacheFull, NotSupported, Shared
from lockstep.reference.wrapper import WrapperCache

QUICK = settings(max_examples=40, deadline=None, database=None)

ERRORS = {CacheFull: "cache-full", NotSupported: "not-supported", Shared: "shared"}

Seen = list[list[tuple[int, int]]]
"""(position, tag) of what each row sees, sorted."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a cache; infinity where there is no limit."""

    sequences: int = 1
    capacity: int = 9
    batch: int = 4
    window: float = inf
    memory: float = inf
    chunk: float = inf
    shift: bool = True

    def open(self) -> CausalCache:
        limits = [
            None if limit == inf else int(limit)
            for limit in (self.window, self.memory, self.chunk)
        ]
        return CausalCache(
            self.sequences, self.capacity, self.batch, *limits, shift=self.shift
        )

    def get_memory(self) -> float:
        """Several sequences remember one token more than the window; a memory of the
        capacity is none."""
        least = self.window + 1 if self.sequences > 1 else 0
        memory = max(self.memory, least)
        return memory if memory < self.capacity else inf

    def count_cells(self) -> float:
        memory = self.get_memory()
        if memory == inf:
            return self.sequences * self.capacity
        return self.sequences * memory + self.batch


SIZES = {
    "causal": Sizes(),
    "causal-3": Sizes(3, 5),
    "causal-3-no-shift": Sizes(3, 5, shift=False),
    "swa-1": Sizes(window=1, memory=1),
    "swa-1-of-3": Sizes(3, window=1, memory=1),
    "swa-3-of-2": Sizes(2, window=3, memory=3),
    "swa-memory": Sizes(window=1, memory=4),
    "swa-memory-of-2": Sizes(2, window=2, memory=4, batch=3),
    "swa-of-the-capacity": Sizes(2, 4, window=3, memory=3),
    "chunked-3": Sizes(capacity=14, chunk=3),
    "chunked-2-of-3": Sizes(3, 6, chunk=2),
}
every_size = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())


class Book:
    """Who holds which tags where: (sequence, position) → tags. Tags of one cell stand
    under each sequence that shares it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.held: dict[tuple[int, int], list[int]] = {}

    def get_positions(self, sequence: int) -> list[int]:
        return [position for owner, position in self.held if owner == sequence]

    def count(self) -> int:
        return len({tag for tags in self.held.values() for tag in tags})

    def forward(self, batch: Batch, tags: Sequence[int]) -> str | Seen:
        rows = [*zip(batch.positions, batch.sequences, strict=True)]
        for sequence in range(self.sizes.sequences):
            low = min((at for at, owner in rows if owner == sequence), default=None)
            if low is None:
                low = max(self.get_positions(sequence), default=-1) + 1
            self.forget(sequence, 0, low - self.sizes.get_memory())
        if self.sizes.count_cells() - self.count() < len(rows):
            return "cache-full"
        for tag, (position, sequence) in zip(tags, rows, strict=True):
            self.held.setdefault((sequence, position), []).append(tag)
        return [
            self.see(*row, number in batch.exceptions) for number, row in enumerate(rows)
        ]

    def see(self, query: int, sequence: int, ahead: bool) -> list[tuple[int, int]]:
        begin = query - self.sizes.window
        if self.sizes.chunk != inf:
            begin = max(begin, query // self.sizes.chunk * self.sizes.chunk)
        end = inf if ahead else query
        return sorted(
            (position, tag)
            for (owner, position), tags in self.held.items()
            if owner == sequence and begin <= position <= end
            for tag in tags
        )

    def forget(self, sequence: int, begin: float, end: float) -> None:
        for position in self.get_positions(sequence):
            if begin <= position < end:
                del self.held[sequence, position]

    def copy(self, source: int, target: int, length: int) -> None:
        self.forget(target, 0, inf)
        for position in self.get_positions(source):
            if position < length:
                self.held[target, position] = list(self.held[source, position])

    def remove(self, sequence: int, begin: int, end: int | None) -> set[str]:
        """The errors that there is reason for; if there is none, it is done."""
        stop = inf if end is None else end
        moving = {at: self.held[sequence, at] for at in self.get_positions(sequence)}
        moving = {at: tags for at, tags in moving.items() if at >= stop}
        others = {
            tag
            for (owner, _), tags in self.held.items()
            if owner != sequence
            for tag in tags
        }
        errors = set()
        if any(tag in others for tags in moving.values() for tag in tags):
            errors.add("shared")
        if moving and not self.sizes.shift:
            errors.add("not-supported")
        if not errors:
            self.forget(sequence, begin, inf)
            for position, tags in moving.items():
                assert end is not None
                self.held[sequence, position - end + begin] = tags
        return errors


def ask(call: Callable[[], object]) -> str | None:
    """The error by name, or None."""
    try:
        call()
    except (CacheFull, NotSupported, Shared) as error:
        return ERRORS[type(error)]
    return None


def see(cache: CausalCache, batch: Batch) -> Seen:
    return [
        sorted((token.position, token.tag) for token in cache.visible(row))
        for row in range(len(batch))
    ]


Numbers = tuple[int, ...]
WHAT = ("forward", "forward", "forward", "forward", "copy", "remove", "cut", "middle")
NUMBERS = st.tuples(*[st.integers(0, 11) for _ in range(6)])
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), NUMBERS), min_size=4, max_size=24)

JUMPS = (0, 0, 0, 0, 0, 0, 0, -1, -2, 1, 4, -100)
"""By how much a batch misses the position that comes next."""


def make_batch(book: Book, numbers: Numbers) -> Batch:
    """Rows of one sequence, or of several by turns."""
    size, first, width, jump, ahead, back = numbers
    sizes = book.sizes
    chosen = [(first + step) % sizes.sequences for step in range(1 + width % 3)]
    at = {
        owner: max(0, max(book.get_positions(owner), default=-1) + 1 + JUMPS[jump])
        for owner in chosen
    }
    positions, sequences = [], []
    for row in range(1 + size % sizes.batch):
        owner = chosen[row % len(chosen)]
        positions.append(at[owner])
        sequences.append(owner)
        at[owner] += 1
    if back == 11:
        positions.reverse()
    exceptions = [ahead % len(positions)] if ahead > 8 else []
    return Batch(positions, sequences, exceptions)


class Story:
    """A cache and its book, through the same steps.

    part: the cache that shows what is seen; `cache` is the same, or a wrapper of it.
    """

    def __init__(self, sizes: Sizes, wrapped: bool = False) -> None:
        self.part, self.book = sizes.open(), Book(sizes)
        self.cache = WrapperCache([self.part]) if wrapped else self.part
        self.tag = 0

    def step(self, what: str, numbers: Numbers) -> None:
        count = self.book.sizes.sequences
        sequence, begin, length = numbers[0] % count, numbers[1], numbers[2] % 4
        if what == "forward":
            self.forward(make_batch(self.book, numbers))
        elif what == "copy" and count > 1:
            target = (sequence + 1 + numbers[1] % (count - 1)) % count
            self.cache.copy_prefix(sequence, target, numbers[2])
            self.book.copy(sequence, target, numbers[2])
        elif what == "remove":
            self.remove(sequence, 0, None)
        elif what == "cut":
            self.remove(sequence, begin, None)
        elif what == "middle":
            self.remove(sequence, begin, begin + length)

    def forward(self, batch: Batch) -> None:
        tags = range(self.tag, self.tag + len(batch))
        self.tag += len(batch)
        expected = self.book.forward(batch, tags)
        error = ask(lambda: self.cache.forward(batch, tags))
        assert (error or see(self.part, batch)) == expected

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        errors = self.book.remove(sequence, begin, end)
        error = ask(lambda: self.cache.remove(sequence, begin, end))
        assert error in errors if errors else error is None

    def check_resume(self) -> None:
        """All that a query would see is there; holes between count for nothing."""
        sizes = self.book.sizes
        for sequence in range(sizes.sequences):
            held = self.book.get_positions(sequence)
            for position in range(15):
                window = range(int(max(0, position - min(sizes.window, 99))), position)
                reaches = [*window, position][0] >= min(held, default=99)
                follows = position - 1 <= max(held, default=-99)
                expected = sizes.get_memory() == inf or (reaches and follows)
                assert self.cache.can_resume(sequence, position) is expected


def tell(
    sizes: Sizes, steps: Sequence[tuple[str, Numbers]], wrapped: bool = False
) -> Story:
    story = Story(sizes, wrapped)
    for what, numbers in steps:
        story.step(what, numbers)
    return story
