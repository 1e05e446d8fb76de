"""Groups failures by their likely cause, for every report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.harness.execution.causes import Evidence, join_causes, tell_cause

T = TypeVar("T")


@dataclass(frozen=True)
class Group(Generic[T]):
    """Failures that probably have the same cause.

    Attributes:
        sentence: a description of their common features; "" for a single failure.
    """

    failures: Sequence[T]
    sentence: str


def group_failures(
    failures: Sequence[T],
    evidence: Sequence[Evidence],
    backends: Sequence[Hashable],
    causes: Sequence[Hashable | None],
) -> list[Group[T]]:
    """Groups failures; the groups are in the order of their first failures.

    Args:
        failures: the failures, of any backends.
        evidence: the evidence of each failure.
        backends: the backend of each failure; different backends share no cause.
        causes: the cause of each failure, or None if it is unknown. Failures to which a
            check has attributed the same cause have equal causes.
    """
    roots = list(range(len(failures)))
    for backend in dict.fromkeys(backends):
        own = [place for place, one in enumerate(backends) if one == backend]
        first: dict[Hashable, int] = {}
        joined = [
            (first.setdefault(causes[place], n), n)
            for n, place in enumerate(own)
            if causes[place] is not None
        ]
        for n, root in enumerate(join_causes([evidence[at] for at in own], joined)):
            roots[own[n]] = own[root]
    members: dict[int, list[int]] = {}
    for place, root in enumerate(roots):
        members.setdefault(root, []).append(place)
    return [
        Group([failures[at] for at in places], say([evidence[at] for at in places]))
        for places in members.values()
    ]


def say(evidence: Sequence[Evidence]) -> str:
    if len(evidence) == 1:
        return ""
    return f"{len(evidence)} failures, probably one cause: {tell_cause(evidence)}"
