"""Searches for the release at which behaviour changes. Installs and runs no release.

Releases are numbered from 0, the oldest. The result of a release is AGREES, the signature
of a divergence, or None if the release cannot be tested; such a release is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

AGREES = "agrees"

Shown = Mapping[int, str | None]
"""Number of a tried release → its result."""


class Untestable(Exception):
    """A release does not install, build or import, or its backend is refused."""


@dataclass(frozen=True)
class Change:
    """Where behaviour changes.

    Attributes:
        before: the last release with the result of the oldest testable one.
        after: the first release with the result of the newest testable one.
    """

    before: int
    after: int

    @property
    def is_exact(self) -> bool:
        return self.after == self.before + 1


def choose_next(size: int, shown: Shown) -> int | None:
    """Returns the release to try next; None if the search is over.

    Both ends come first. If an end cannot be tested, the search moves inwards by halves
    until two releases differ, and then halves the range between them. A release that
    cannot be tested, or has a third result, divides a gap; the largest gap is halved
    next, since neighbours of a broken release are often broken, too.
    """
    for end in (size - 1, 0):
        if end not in shown:
            return end
    low, high = get_bounds(size, shown)
    tried = [low, *(n for n in range(low + 1, high) if n in shown), high]
    begin, end = max(pairwise(tried), key=lambda gap: gap[1] - gap[0])
    return (begin + end) // 2 if end - begin > 1 else None


def get_bounds(size: int, shown: Shown) -> tuple[int, int]:
    """Returns the releases between which to search, after both ends were tried."""
    change, testable = find_change(shown), list_testable(shown)
    if change is not None:
        return change.before, change.after
    if not testable:
        return 0, size - 1
    before = max((n for n in shown if n < testable[0]), default=testable[0])
    if testable[0] - before > 1:
        return before, testable[0]
    return testable[-1], min((n for n in shown if n > testable[-1]), default=size - 1)


def find_change(shown: Shown) -> Change | None:
    """Returns the bounds of the change found so far; None if the oldest and the newest
    testable release have the same result."""
    testable = list_testable(shown)
    if not testable or shown[testable[0]] == shown[testable[-1]]:
        return None
    old, new = shown[testable[0]], shown[testable[-1]]
    after = next(n for n in testable if shown[n] == new)
    before = max(n for n in testable if n < after and shown[n] == old)
    return Change(before, after)


def list_testable(shown: Shown) -> list[int]:
    return sorted(n for n, signature in shown.items() if signature is not None)
