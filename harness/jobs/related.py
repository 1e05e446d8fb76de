"""Relates the failures of a check: common causes, and the results of other backends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from lockstep.harness.execution.causes import Evidence, get_evidence, join_causes
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Pair
from lockstep.harness.programs.ledger import drop_undeclared
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

# --- common causes ----------------------------------------------------------------------


def number_causes(pool: Pool, pairs: Sequence[Pair]) -> None:
    """Notes which failures of a backend may have one cause.

    Args:
        pool: the pool that runs combinations of the programs.
        pairs: the pairs whose failures get cause numbers.
    """
    count = 0
    for backend in dict.fromkeys(pair.backend for pair in pairs):
        slots = [
            (pair, index)
            for pair in pairs
            if pair.backend == backend
            for index in range(len(pair.failures))
        ]
        failures = [pair.failures[index] for pair, index in slots]
        evidence = [get_evidence(item.program, item.divergence) for item in failures]
        joined = find_same_steps(pool, backend, failures, evidence)
        roots = join_causes(evidence, joined)
        numbers = {root: at for at, root in enumerate(sorted(set(roots)), count + 1)}
        count += len(numbers)
        for (pair, index), root in zip(slots, roots, strict=True):
            pair.failures[index] = replace(pair.failures[index], cause=numbers[root])


def find_same_steps(
    pool: Pool,
    backend: str,
    failures: Sequence[Failure],
    evidence: Sequence[Evidence],
) -> list[tuple[int, int]]:
    """Lists pairs of failures, as indices, that occur after the same steps."""
    joined: list[tuple[int, int]] = []
    for kind in dict.fromkeys(item.family for item in evidence):
        indices = [
            index
            for index, failure in enumerate(failures)
            if evidence[index].family == kind and not failure.divergence.is_fatal
        ]
        known = join_causes([evidence[index] for index in indices])
        if len(set(known)) < 2:
            continue
        programs = [failures[index].program.to_json() for index in indices]
        signatures = [failures[index].signature for index in indices]
        answer = pool.call(messages.Cluster(backend, programs, signatures, known))
        if isinstance(answer, messages.Stopped):
            continue
        joined += [
            (indices[later], indices[first])
            for later, first in answer.likely
            if max(later, first) < len(indices)
        ]
    return joined


# --- answers of other backends ----------------------------------------------------------


MAX_COMPARED = 32
"""The maximum number of failures that also run on other backends: one of each cause
first."""


def compare_backends(
    pool: Pool, pairs: Sequence[Pair], watch: Callable[[], None]
) -> None:
    """Runs diverging programs on other backends. If these backends disagree with the
    reference, too, the reference may be wrong.

    Args:
        pool: the pool that runs the programs.
        pairs: the pairs of the check, with their failures.
        watch: see `Pool.run`.
    """
    seen: Counter[int] = Counter()
    slots = []
    for pair in pairs:
        for index, failure in enumerate(pair.failures):
            seen[failure.cause] += 1
            slots.append((seen[failure.cause], pair, index))
    usable = [pair for pair in pairs if not pair.crashes]
    died: set[str] = set()
    for _, pair, index in sorted(slots, key=itemgetter(0))[:MAX_COMPARED]:
        failure = pair.failures[index]
        tasks: deque[messages.Task[messages.Ran]] = deque()
        for peer in usable:
            if peer.kind == pair.kind and peer is not pair and peer.backend not in died:
                program = drop_undeclared(failure.program, peer.declared)
                tasks.append(messages.RunProgram(peer.backend, program.to_json()))
        backends = [task.backend for task in tasks]
        answers: dict[str, str] = {}
        for task, event in pool.run(tasks, watch):
            if isinstance(event, messages.Ran):
                answers[task.backend] = compare(event.divergence, failure)
            elif isinstance(event, messages.Died):
                died.add(task.backend)
        answers = {name: answers[name] for name in backends if name in answers}
        pair.failures[index] = replace(failure, answers=answers)


def compare(divergence: Divergence | None, failure: Failure) -> str:
    """Classifies another backend's answer to a failing program; see `Failure.answers`."""
    if divergence is None:
        return "agrees"
    first = failure.divergence
    is_same = (divergence.step, divergence.got) == (first.step, first.got)
    if is_same and divergence.message == first.message:
        return "same"
    return divergence.get_signature(failure.program)
