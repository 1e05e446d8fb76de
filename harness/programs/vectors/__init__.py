"""Sets of programs with the answers that the reference expects."""

from __future__ import annotations

from dataclasses import dataclass

TRACE_FORMAT = "lockstep-trace/1"

SEED = 0


@dataclass(frozen=True)
class Problem:
    """A problem with a file. differs: it is a proper vector, but the reference here
    expects something else."""

    words: str
    differs: bool = False
