"""Tokens as a tokenizer numbers them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Path = tuple[int, ...]
"""Tokens that are kept. Python's garbage collector leaves tuples of numbers alone; of
lists it would look at every element, again and again."""

Tokens = TypeVar("Tokens", list[int], Path)


def check_tokens(tokens: Iterable[int]) -> list[int]:
    """The tokens in a list of their own; raises ValueError if one is not an integer."""
    checked = list(tokens)
    if set(map(type, checked)) <= {int}:  # the fast way: no loop in Python
        return checked
    for place, token in enumerate(checked):
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(
                f"token {token!r} at place {place} is not an integer; give the numbers"
                " that the tokenizer made as Python integers"
            )
    return checked


def check_request(tokens: Iterable[int]) -> list[int]:
    """The same for a request, which has at least one token."""
    checked = check_tokens(tokens)
    if not checked:
        raise ValueError("the request is empty; give at least one token to compute")
    return checked


def count_common(left: Tokens, right: Tokens) -> int:
    """The length of the common beginning of two lists of tokens.

    Slices are compared, each half as long as the one before: a loop over the tokens in
    Python would take ten times as long.
    """
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
