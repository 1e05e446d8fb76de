"""Steps that the contracts' rules for shrinking have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def replace_at(items: Sequence[T], place: int, *others: T) -> list[T]:
    """Returns the items with others, or none, in the place of one."""
    return [*items[:place], *others, *items[place + 1 :]]


def list_each(items: Sequence[T], new: T) -> Iterator[list[T]]:
    """Yields the items with a new one at each place between them, last place first."""
    for place in range(len(items), -1, -1):
        yield [*items[:place], new, *items[place:]]


def list_steps(most: int) -> list[int]:
    """Lists how much lower a number may get that can be `most` lower, most first."""
    return sorted({most, most // 2, 1} - {0}, reverse=True) if most > 0 else []
