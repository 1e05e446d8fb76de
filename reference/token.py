"""Tokens, the only content of a cache."""

from typing import NamedTuple


class Token(NamedTuple):
    """One token of a sequence.

    Attributes:
        tag: number of the token in the program; it stands for the token's K and V.
        position: place in the sequence, from 0.
    """

    tag: int
    position: int


class SharedToken(NamedTuple):
    """One token in a cache of many sequences.

    Attributes:
        tag: as in `Token`.
        position: given by the caller.
        sequences: the sequences that the token belongs to, at least one.
    """

    tag: int
    position: int
    sequences: frozenset[int]
