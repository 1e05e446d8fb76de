"""Checks and compares tokens, which are integers from a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from lockstep.impl.shared.errors import MisuseError

Path = tuple[int, ...]
"""Stored tokens. Python's garbage collector does not track tuples of integers, but would
visit every element of a list in each collection."""

Tokens = TypeVar("Tokens", list[int], Path)


def check_tokens(tokens: Iterable[int]) -> list[int]:
    """Returns the tokens in a new list; raises MisuseError for a non-integer token."""
    checked = list(tokens)
    kinds = set(map(type, checked))  # without a Python loop over all tokens
    wrong = {kind for kind in kinds if kind is bool or not issubclass(kind, int)}
    if wrong:
        index, token = next(
            numbered for numbered in enumerate(checked) if type(numbered[1]) in wrong
        )
        raise MisuseError(
            f"token {token!r} (at index {index}) is not an integer; convert the token"
            " numbers to Python integers, for instance with tolist()"
        )
    return checked


def check_request(tokens: Iterable[int]) -> list[int]:
    """Checks the tokens like `check_tokens`; also requires at least one token."""
    checked = check_tokens(tokens)
    if not checked:
        raise MisuseError("the request is empty; give at least one token to compute")
    return checked


def count_common(first: Tokens, second: Tokens) -> int:
    """Returns the length of the common prefix of two lists of tokens.

    It compares slices, by bisection: a Python loop over the tokens would take ten times
    as long.
    """
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
