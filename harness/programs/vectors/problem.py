"""A problem with a set of vectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A problem with a file. differs: it is a proper vector, but the reference here
    expects something else."""

    words: str
    differs: bool = False
