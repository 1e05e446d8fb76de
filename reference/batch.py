"""What one forward pass brings: a row for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """The rows of one pass.

    positions, sequences: of each row. exceptions: the rows that may also look ahead, in
    this pass only. multimodal: the rows that stand for an image or the like.
    """

    positions: Sequence[int]
    sequences: Sequence[int]
    exceptions: Sequence[int] = ()
    multimodal: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.positions)

    def check(self, sequences: int, most: int) -> None:
        """Raises ValueError with the rule that the batch breaks, for a cache of
        `sequences` sequences that was promised at most `most` rows."""
        rows = len(self.positions)
        if len(self.sequences) != rows:
            raise ValueError(f"{rows} positions, but {len(self.sequences)} sequences")
        if rows == 0:
            raise ValueError("the batch is empty; it needs at least one row")
        if rows > most:
            raise ValueError(f"a batch of {rows} rows; at most {most} were announced")
        for position in self.positions:
            if position < 0:
                raise ValueError(f"position {position} is negative")
        for sequence in self.sequences:
            check_sequence(sequence, sequences)
        for row in (*self.exceptions, *self.multimodal):
            if not 0 <= row < rows:
                raise ValueError(f"row {row} is named, but the rows are 0 … {rows - 1}")

    def get_positions(self, sequence: int) -> list[int]:
        """The positions of one sequence's rows, in their order."""
        rows = zip(self.positions, self.sequences, strict=True)
        return [position for position, owner in rows if owner == sequence]


def check_sequence(sequence: int, sequences: int) -> None:
    if not 0 <= sequence < sequences:
        raise ValueError(f"sequence {sequence} is none of 0 … {sequences - 1}")


def check_copy(source: int, target: int, length: int, sequences: int) -> None:
    """Raises ValueError if copy_prefix cannot be asked for this."""
    check_sequence(source, sequences)
    check_sequence(target, sequences)
    if source == target:
        raise ValueError(f"sequence {source} cannot be copied onto itself")
    if length < 0:
        raise ValueError(f"length {length} is negative")


def check_range(sequence: int, begin: int, end: int | None, sequences: int) -> None:
    """Raises ValueError if remove cannot be asked for this. end: None for no end."""
    check_sequence(sequence, sequences)
    if begin < 0:
        raise ValueError(f"begin {begin} is negative")
    if end is not None and begin > end:
        raise ValueError(f"begin {begin} lies behind end {end}")


def check_position(sequence: int, position: int, sequences: int) -> None:
    """Raises ValueError if can_resume cannot be asked for this."""
    check_sequence(sequence, sequences)
    if position < 0:
        raise ValueError(f"position {position} is negative")
