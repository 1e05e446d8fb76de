"""Represents the rows of one forward pass as arrays, and checks the arguments of
passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.errors import MisuseError

Ints = npt.NDArray[np.int64]

NONE = np.empty(0, np.int64)

FEW = 64
"""Up to this count of numbers, plain Python is faster, since numpy has a fixed cost."""


class Owners:
    """The sequences of the rows of a pass. Passes of the same sequences share one object.

    Args:
        sequences: [rows], the sequence of each token.
        count: number of sequences; they are numbered from 0.

    Attributes:
        sequences: int64 [rows], read-only.
        distinct: the distinct sequences, in order of first appearance.

    Raises:
        MisuseError: a sequence does not exist.
    """

    def __init__(self, sequences: tuple[int, ...], count: int) -> None:
        self.sequences = np.array(sequences, np.int64)
        self.sequences.flags.writeable = False
        self.distinct = list(dict.fromkeys(self.sequences.tolist()))
        for owner in min(self.distinct), max(self.distinct):
            check_sequence(owner, count)

    @cached_property
    def groups(self) -> dict[int, Ints | slice]:
        """Sequence → its rows, in order."""
        rows = len(self.sequences)
        if len(self.distinct) == 1:
            return {self.distinct[0]: slice(0, rows)}
        if len(self.distinct) == rows:
            return {owner: slice(row, row + 1) for row, owner in enumerate(self.distinct)}
        order = self.sequences.argsort(kind="stable")
        ends = np.bincount(self.sequences).cumsum()
        return {
            owner: as_slice(order[ends[owner - 1] if owner else 0 : ends[owner]])
            for owner in self.distinct
        }


get_owners = lru_cache(maxsize=16)(Owners)


class PassRows:
    """The rows of one forward pass, one for each token.

    Args:
        positions: [rows], position of each token.
        sequences: [rows], sequence of each token.
        exceptions: rows that may also attend to tokens at later positions.
        multimodal: rows that represent an image.
        count: number of sequences; they are numbered from 0.
        most: maximum number of rows of a batch.

    Attributes:
        positions, sequences: int64 [rows].
        places: int64 [rows], the positions as cells store them; see `Cells.unit`.
        shared: data shared by batches of the same sequences.
        owners: the distinct sequences, in order of first appearance.
        is_step: whether each row belongs to another sequence, as in a decode step.
        free: `exceptions` as an array of row numbers.
        images: `multimodal` as an array of row numbers.

    Raises:
        MisuseError: the batch is empty, too large or inconsistent, or it names a
            position, a sequence or a row that does not exist.
    """

    def __init__(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int],
        multimodal: Sequence[int],
        count: int,
        most: int,
    ) -> None:
        rows = len(positions)
        if len(sequences) != rows:
            raise MisuseError(
                f"the batch has {rows} positions, but {len(sequences)} sequences; give"
                " one of each for each row"
            )
        if rows == 0:
            raise MisuseError("the batch is empty; it needs at least one row")
        if rows > most:
            raise MisuseError(
                f"the batch has {rows} rows, but the cache was opened for at most {most}"
            )
        # Copied since masks are made later, when the caller may have changed its arrays.
        self.positions = np.array(positions, np.int64)
        if np.count_nonzero(self.positions < 0):
            raise MisuseError(f"position {self.positions.min()} is negative")
        self.places = self.positions
        self.shared = get_owners(tuple(sequences), count)
        self.sequences, self.owners = self.shared.sequences, self.shared.distinct
        self.is_step = len(self.owners) == rows
        self.free = self.name(exceptions)
        self.images = self.name(multimodal)

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, rows: Sequence[int]) -> Ints:
        """Converts row numbers to an array.

        Raises:
            MisuseError: a row does not exist.
        """
        if not len(rows):
            return NONE
        for row in rows:
            if not 0 <= row < len(self):
                raise MisuseError(
                    f"there is no row {row}; the rows of the batch are 0 …"
                    f" {len(self) - 1}"
                )
        return np.array(rows, np.int64)

    @property
    def groups(self) -> dict[int, Ints | slice]:
        """Sequence → its rows, in order."""
        return self.shared.groups

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """Sequence → its lowest and its highest position."""
        if self.is_step:
            positions = self.positions.tolist()
            return dict(
                zip(self.owners, zip(positions, positions, strict=True), strict=True)
            )
        groups = self.groups.items()
        return {owner: get_bounds(self.positions[rows]) for owner, rows in groups}

    def get_rows(self, owner: int) -> Ints | slice:
        """Returns the rows of one sequence, in order."""
        return self.groups[owner]

    def get_span(self, owner: int) -> tuple[int, int]:
        """Returns the lowest and the highest position of one sequence."""
        return self.spans[owner]

    def count_rows(self) -> list[int]:
        """Returns the number of rows of each sequence."""
        return [len(self.positions[rows]) for rows in self.groups.values()]


def get_bounds(numbers: Ints) -> tuple[int, int]:
    """Returns the minimum and the maximum."""
    if len(numbers) <= FEW:
        few = numbers.tolist()
        return min(few), max(few)
    return int(numbers.min()), int(numbers.max())


def is_ascending(numbers: Ints) -> bool:
    """Returns whether no number is less than its predecessor."""
    return not np.count_nonzero(numbers[1:] < numbers[:-1])


def is_run(numbers: Ints) -> bool:
    """Returns whether each number is its predecessor plus 1."""
    return not np.count_nonzero(numbers[1:] - numbers[:-1] != 1)


def as_slice(numbers: Ints) -> Ints | slice:
    """Converts distinct numbers to a slice if they are consecutive and ascending."""
    count = len(numbers)
    if count:
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first + 1 == count and is_ascending(numbers):
            return slice(first, last + 1)
    return numbers


def check_sequence(sequence: int, count: int) -> None:
    if not 0 <= sequence < count:
        raise MisuseError(
            f"there is no sequence {sequence}; the sequences are 0 … {count - 1}"
        )


def check_copy(source: int, target: int, length: int, count: int) -> None:
    check_sequence(source, count)
    check_sequence(target, count)
    if source == target:
        raise MisuseError(f"sequence {source} cannot be copied onto itself")
    if length < 0:
        raise MisuseError(f"length {length} is negative")


def check_range(sequence: int, begin: int, end: int | None, count: int) -> None:
    check_sequence(sequence, count)
    if begin < 0:
        raise MisuseError(f"begin {begin} is negative")
    if end is not None and begin > end:
        raise MisuseError(
            f"begin must not be greater than end, but [begin, end) is [{begin}, {end})"
        )


def check_position(sequence: int, position: int, count: int) -> None:
    check_sequence(sequence, count)
    if position < 0:
        raise MisuseError(f"position {position} is negative")
