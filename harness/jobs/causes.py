"""Numbers failures: those of a backend that probably have one cause have one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.harness.execution.causes import Evidence, get_evidence, join_causes
from lockstep.harness.jobs.outcome import Failure, Pair
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool


def number_causes(pool: Pool, pairs: Sequence[Pair]) -> None:
    """Notes which failures of a backend probably have one cause.

    Args:
        pool: runs programs again with the steps of others.
        pairs: their failures get numbers.
    """
    number = 0
    for backend in dict.fromkeys(pair.backend for pair in pairs):
        owned = [pair for pair in pairs if pair.backend == backend]
        places = [(pair, n) for pair in owned for n in range(len(pair.failures))]
        failures = [pair.failures[n] for pair, n in places]
        evidence = [get_evidence(one.program, one.divergence) for one in failures]
        joined = find_same_steps(pool, backend, failures, evidence)
        roots = join_causes(evidence, joined)
        numbers = {root: at for at, root in enumerate(sorted(set(roots)), number + 1)}
        number += len(numbers)
        for (pair, n), root in zip(places, roots, strict=True):
            pair.failures[n] = replace(pair.failures[n], cause=numbers[root])


def find_same_steps(
    pool: Pool,
    backend: str,
    failures: Sequence[Failure],
    evidence: Sequence[Evidence],
) -> list[tuple[int, int]]:
    """Places of failures of a kind to which the same steps lead."""
    found: list[tuple[int, int]] = []
    for kind in dict.fromkeys(one.family for one in evidence):
        places = [
            place
            for place, one in enumerate(failures)
            if evidence[place].family == kind and not one.divergence.is_fatal
        ]
        related = [failures[place] for place in places]
        known = join_causes([evidence[place] for place in places])
        if len(set(known)) < 2:
            continue
        programs = [failure.program.to_json() for failure in related]
        signatures = [failure.signature for failure in related]
        answer = pool.call(messages.Cluster(backend, programs, signatures, known))
        if isinstance(answer, messages.Stopped):
            continue
        found += [
            (places[later], places[first])
            for later, first in answer.likely
            if max(later, first) < len(places)
        ]
    return found
