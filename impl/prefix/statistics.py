"""Counts of reused tokens over all requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """requests: that were opened. hits: those that could use something stored. asked,
    reused: their tokens, and those of them that needed no computing. reason: why the last
    request could not use all of its tokens; None if none was opened yet. tokens, bytes:
    what is stored now.
    """

    requests: int
    hits: int
    asked: int
    reused: int
    reason: str | None
    tokens: int
    bytes: int


class Log:
    """Counts requests as they are opened."""

    def __init__(self) -> None:
        self.requests = self.hits = self.asked = self.reused = 0
        self.reason: str | None = None

    def add(self, asked: int, reused: int, reason: str) -> None:
        """One more request."""
        self.requests += 1
        self.hits += reused > 0
        self.asked += asked
        self.reused += reused
        self.reason = reason

    def get(self, tokens: int, size: int) -> Statistics:
        counts = self.requests, self.hits, self.asked, self.reused
        return Statistics(*counts, self.reason, tokens, size)


def explain(stored: int, matched: int, asked: int) -> str:
    """Why a request cannot use all of its `asked` tokens, whatever the layers can do.

    stored: tokens that are stored. matched: those that the request begins with.
    """
    if not stored:
        return "nothing is stored"
    if not matched:
        return "no common prefix"
    if matched < asked:
        return f"only the first {matched} of {asked} tokens are stored"
    return "the last token is always computed"
