"""Counts reused tokens over all requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """Counts over all requests.

    Attributes:
        requests: number of opened requests.
        hits: number of requests that reused at least one token.
        asked: number of tokens in all requests.
        reused: number of reused tokens in all requests.
        reason: why the last request did not reuse all its tokens; None before the first
            request.
        tokens, bytes: number of tokens and bytes of the present content.
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
        """Counts one more request."""
        self.requests += 1
        self.hits += reused > 0
        self.asked += asked
        self.reused += reused
        self.reason = reason

    def get(self, tokens: int, size: int) -> Statistics:
        counts = self.requests, self.hits, self.asked, self.reused
        return Statistics(*counts, self.reason, tokens, size)


def explain(stored: int, matched: int, asked: int) -> str:
    """Returns the reason why a request cannot reuse all its tokens, without regard to the
    layers.

    Args:
        stored: number of stored tokens.
        matched: length of the common prefix of the request and the stored tokens.
        asked: number of tokens of the request.
    """
    if not stored:
        return "nothing is stored"
    if not matched:
        return "no common prefix"
    if matched < asked:
        return f"only the first {matched} of {asked} tokens are stored"
    return "the last token is always computed"
