"""The tokens that the reference caches store."""

from __future__ import annotations

from typing import NamedTuple


class Token(NamedTuple):
    """One token of a sequence.

    Attributes:
        tag: number of the token in the program; it represents the token's K and V.
        position: position in the sequence, from 0.
    """

    tag: int
    position: int

    def __deepcopy__(self, memo: object) -> Token:
        """Returns the token itself, which is immutable; copying a cache is then fast."""
        return self


class SharedToken(NamedTuple):
    """One token in a cache of many sequences.

    Attributes:
        tag: as in `Token`.
        position: given by the caller.
        sequences: the sequences that the token belongs to, at least one.
        offset: how far the row and the column of a token of an image are from its
            position; (0, 0) for text.
    """

    tag: int
    position: int
    sequences: frozenset[int]
    offset: tuple[int, int] = (0, 0)

    @property
    def place(self) -> tuple[int, int, int]:
        """The coordinates (t, y, x); t is the position."""
        (y, x), t = self.offset, self.position
        return t, t + y, t + x

    def __deepcopy__(self, memo: object) -> SharedToken:
        """Returns the token itself, which is immutable; copying a cache is then fast."""
        return self
