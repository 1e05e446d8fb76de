"""The one thing that a cache holds."""

from typing import NamedTuple


class Token(NamedTuple):
    """One token of a sequence.

    tag: which token of the program it is; it stands for the token's K and V.
    position: its place in the sequence, from 0.
    """

    tag: int
    position: int


class SharedToken(NamedTuple):
    """One token in a cache of many sequences.

    tag, position: as in `Token`; the position is the caller's.
    sequences: the sequences that it belongs to, at least one.
    """

    tag: int
    position: int
    sequences: frozenset[int]
