"""The rows of a forward pass, and the preconditions that callers must meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class Batch:
    """The rows of one pass, one for each token.

    Attributes:
        positions: position of each row.
        sequences: sequence of each row.
        exceptions: rows that may also see later positions; holds for this pass.
        multimodal: rows that represent an image or other input that is not text.
        coordinates: (y, x) of each row, if positions have three axes; t is the position.
            Empty if all rows are text: then y = x = t.
    """

    positions: Sequence[int]
    sequences: Sequence[int]
    exceptions: Sequence[int] = ()
    multimodal: Sequence[int] = ()
    coordinates: Sequence[Sequence[int]] = ()

    def __len__(self) -> int:
        return len(self.positions)

    def check(self, sequences: int, most: int) -> None:
        """Checks the batch for a cache.

        Args:
            sequences: number of sequences of the cache.
            most: maximum number of rows in a batch of the cache.

        Raises:
            ValueError: the batch is invalid.
        """
        rows = len(self.positions)
        if len(self.sequences) != rows:
            raise ValueError(f"{rows} positions, but {len(self.sequences)} sequences")
        if rows == 0:
            raise ValueError("the batch is empty; it needs at least one row")
        if rows > most:
            raise ValueError(f"the batch has {rows} rows; at most {most} were announced")
        if self.coordinates and [len(pair) for pair in self.coordinates] != [2] * rows:
            raise ValueError(f"coordinates must be {rows} pairs, one for each row")
        for position in chain(self.positions, *self.coordinates):
            if position < 0:
                raise ValueError(f"position {position} is negative")
        for sequence in self.sequences:
            check_sequence(sequence, sequences)
        for row in (*self.exceptions, *self.multimodal):
            if not 0 <= row < rows:
                raise ValueError(f"there is no row {row}; the rows are 0 … {rows - 1}")

    def get_offset(self, row: int) -> tuple[int, int]:
        """Returns how far y and x of a row are from its position."""
        at = self.positions[row]
        y, x = self.coordinates[row] if self.coordinates else (at, at)
        return y - at, x - at

    def get_positions(self, sequence: int) -> list[int]:
        """Returns the positions of the rows of one sequence, in order."""
        rows = zip(self.positions, self.sequences, strict=True)
        return [position for position, owner in rows if owner == sequence]


def check_sequence(sequence: int, sequences: int) -> None:
    if not 0 <= sequence < sequences:
        raise ValueError(
            f"there is no sequence {sequence}; the sequences are 0 … {sequences - 1}"
        )


def check_copy(source: int, target: int, length: int, sequences: int) -> None:
    """Raises ValueError if these are not valid arguments of copy_prefix."""
    check_sequence(source, sequences)
    check_sequence(target, sequences)
    if source == target:
        raise ValueError(f"sequence {source} cannot be copied onto itself")
    if length < 0:
        raise ValueError(f"length {length} is negative")


def check_range(sequence: int, begin: int, end: int | None, sequences: int) -> None:
    """Raises ValueError if these are not valid arguments of remove.

    `end` is None for a range without an end.
    """
    check_sequence(sequence, sequences)
    if begin < 0:
        raise ValueError(f"begin {begin} is negative")
    if end is not None and begin > end:
        raise ValueError(f"begin {begin} lies behind end {end}")


def check_position(sequence: int, position: int, sequences: int) -> None:
    """Raises ValueError if these are not valid arguments of can_resume."""
    check_sequence(sequence, sequences)
    if position < 0:
        raise ValueError(f"position {position} is negative")
