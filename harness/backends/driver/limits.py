"""The limits of a driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The time and size of a driver's answers, and how strictly they are checked.

    message_seconds: for the answer to a message; start_seconds: for that to the first.
    line_bytes: of an answer; parsed, it takes some twenty times as much. strict: both
    sides' messages are held against the schemas.
    """

    message_seconds: float = 10.0
    start_seconds: float = 60.0
    line_bytes: int = 1 << 24
    strict: bool = False


def limit_by(step_seconds: float, strict: bool) -> Limits:
    """The limits in a pool whose workers may take `step_seconds` for a step: a message
    gets less, so that its operation can be named."""
    return Limits(message_seconds=step_seconds / 2, strict=strict)
