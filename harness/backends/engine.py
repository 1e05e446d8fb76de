"""Defines the protocol of an inference engine that serves a probe model.

An engine gets and generates the ids of tokens (`harness.backends.probe`). It always
generates the token with the largest logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

NO_ARRAYS: Any = None
"""`Backend.arrays` of an engine."""


@dataclass(frozen=True)
class Generation:
    """A request to an engine.

    Attributes:
        prompt: the ids of the prompt's tokens.
        count: the number of tokens to generate.
        slot: the slot that must run the request; None if the engine chooses.
    """

    prompt: Sequence[int]
    count: int
    slot: int | None = None


class Completion(NamedTuple):
    """The result of a request.

    Attributes:
        ids: the ids of the generated tokens.
        logprobs: the logarithm of the probability of each generated token; None if the
            engine does not tell it.
        cached: the number of tokens of the prompt that the engine did not compute,
            because its caches held them; None if the engine does not tell it.
    """

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    cached: int | None = None


class Stream(Protocol):
    """A request that generates while other requests run."""

    def read(self, count: int) -> Completion:
        """Waits for the next `count` tokens and returns them."""

    def abort(self) -> None:
        """Ends the request. The engine may still be computing its prompt."""


class Engine(Protocol):
    """An inference engine with empty caches.

    A backend implements `complete` and `close`, and the operations that it declares.
    Each method raises `ValueError` for an invalid request: an empty prompt, an id outside
    of the vocabulary, or more tokens than the context has. The engine and its other
    requests then go on as if the request had not been made.

    Attributes:
        first_tag: the id of the first tag of the next program. It is 0 for a new engine.
            An engine that has run other programs gives an id that they have not used
            lately, so that their tokens are never taken for tokens of this program.
    """

    first_tag: int

    def complete(self, requests: Sequence[Generation]) -> Sequence[Completion]:
        """Runs requests that are submitted at the same time; returns their results in
        the same order."""

    def fork(self, request: Generation, answers: int) -> Sequence[Completion]:
        """Runs a request with several answers, which the engine generates from one
        computation of the prompt; returns all of them."""

    def begin(self, request: Generation) -> Stream:
        """Submits a request, and returns while the engine runs it."""

    def flush(self) -> None:
        """Drops all cached prefixes. No stream is open."""

    def save(self, slot: int, name: str) -> None:
        """Saves the content of a slot under a name."""

    def restore(self, slot: int, name: str) -> None:
        """Replaces the content of a slot by saved content."""

    def close(self) -> None:
        """Ends the engine and frees its memory."""
