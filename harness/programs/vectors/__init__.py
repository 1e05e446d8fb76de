"""Sets of programs with the answers that the reference expects."""

from __future__ import annotations

from dataclasses import dataclass

TRACE_FORMAT = "lockstep-trace/1"

SEED = 0


@dataclass(frozen=True)
class Problem:
    """A problem with a file.

    Attributes:
        words: the message, which begins with the place.
        differs: whether the vector is valid, but the reference here expects another
            answer.
    """

    words: str
    differs: bool = False
