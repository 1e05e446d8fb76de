"""Groups failures that may have one cause, for every report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.harness.execution.causes import (
    Evidence,
    join_causes,
    probably_have_one_cause,
    tell_cause,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Group(Generic[T]):
    """Failures that may have the same cause.

    Attributes:
        sentence: a description of their common features; "" for a single failure.
        causes: the largest likely number of causes of these failures.
    """

    failures: Sequence[T]
    sentence: str
    causes: int


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
        causes: the cause of each failure, or None if it is unknown. Failures that may
            have one cause, according to a check, have equal causes.
    """
    groups: list[list[int]] = []
    for backend in dict.fromkeys(backends):
        indices = [index for index, name in enumerate(backends) if name == backend]
        first: dict[Hashable, int] = {}
        joined = [
            (first.setdefault(causes[index], number), number)
            for number, index in enumerate(indices)
            if causes[index] is not None
        ]
        members: dict[int, list[int]] = {}
        roots = join_causes([evidence[index] for index in indices], joined)
        for index, root in zip(indices, roots, strict=True):
            members.setdefault(root, []).append(index)
        groups += members.values()
    return [
        Group(
            [failures[index] for index in indices],
            *describe_group([evidence[index] for index in indices]),
        )
        for indices in sorted(groups)
    ]


def describe_group(evidence: Sequence[Evidence]) -> tuple[str, int]:
    """Returns the sentence about a group, and the largest likely number of causes."""
    causes = len(set(join_causes(evidence, are_one=probably_have_one_cause)))
    if len(evidence) == 1:
        return "", causes
    verb = "probably" if causes == 1 else "may"
    sentence = f"{len(evidence)} failures {verb} have one cause: {tell_cause(evidence)}"
    return sentence, causes


def count_causes(groups: Sequence[Group[T]]) -> str:
    """Describes how many causes all failures together probably have."""
    least, most = len(groups), sum(group.causes for group in groups)
    count = f"{least}" if least == most else f"{least} to {most}"
    return f"{count} likely cause" + "s" * (most > 1)
