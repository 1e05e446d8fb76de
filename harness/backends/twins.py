"""Defines twins: two paged caches that must give equal answers, such as a block manager
and its port to another language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lockstep.harness.core.errors import Broken, format_plain

OPERATIONS = frozenset(
    {
        *("open", "match", "schedule", "run", "launch", "finish", "accept", "preempt"),
        *("free", "fork", "rewind", "evict", "reset", "update_weights"),
    }
)
"""The calls of a scheduler, in which a cache makes choices."""

QUESTIONS = frozenset({"tables", "pool", "entries"})
"""Calls that change nothing. Only the first twin answers them; both twins get all
other calls."""

Pair = tuple[Callable[..., Any], Callable[..., Any]]
Counts = Callable[[Any], Mapping[str, int]]


def count_pool(cache: Any) -> Mapping[str, int]:
    """Counts the blocks of a cache that has the method `pool`."""
    pool = cache.pool()
    return {
        "held": sum(map(bool, pool.references.values())),
        "references": sum(pool.references.values()),
        "free": len(pool.free),
        "cached": len(pool.cached),
    }


class Twins:
    """Two caches that act as one (`PagedCache`).

    The first cache answers, and is checked like any other cache. The second cache must
    give the same answer to each operation, refuse the same calls, and hold the same
    numbers of blocks; it may choose other blocks.

    Args:
        first: the cache that answers.
        second: its twin, opened with the same config.
        counts: names of counts that must be equal.

    Raises:
        Broken: the answers or counts of an operation differ.
    """

    def __init__(self, first: Any, second: Any, counts: Counts = count_pool) -> None:
        self._caches = first, second
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        first, second = self._caches
        if name in QUESTIONS:
            return getattr(first, name)
        methods = getattr(first, name), getattr(second, name)
        if name in OPERATIONS:
            return partial(self._operate, name, methods)
        return partial(call_both, methods)

    def _operate(self, name: str, methods: Pair, *fields: Any) -> Any:
        answers = [answer(method, fields) for method in methods]
        compare(name, "answers", *answers)
        first, second = (self._counts(cache) for cache in self._caches)
        for counted, count in first.items():
            compare(name, f"counts of {counted} blocks", count, second[counted])
        if isinstance(answers[0], ValueError):
            raise answers[0]
        return answers[0]


def call_both(methods: Pair, *fields: Any) -> Any:
    """Calls the method of both twins, and returns the result of the first."""
    result, _ = (method(*fields) for method in methods)
    return result


def answer(method: Callable[..., Any], fields: tuple[Any, ...]) -> Any:
    """Returns the result of a call, or the exception with which the cache refuses it."""
    try:
        result = method(*fields)
    except ValueError as refused:
        return refused
    return list(result) if isinstance(result, tuple) else result


def compare(name: str, subject: str, first: Any, second: Any) -> None:
    """Raises Broken if the results of the twins differ."""
    if all(isinstance(returned, ValueError) for returned in (first, second)):
        return
    if type(first) is not type(second) or first != second:
        raise Broken(
            "twins",
            f"the {subject} of {name} differ: {describe(first)} of the first twin,"
            f" {describe(second)} of the second",
        )


def describe(answer: Any) -> str:
    return (
        f"ValueError: {answer}"
        if isinstance(answer, ValueError)
        else format_plain(answer)
    )
