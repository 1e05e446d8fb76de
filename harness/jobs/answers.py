"""What other backends answer to a program that diverges."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from lockstep.harness.jobs.outcome import Failure, Pair
from lockstep.harness.programs.ledger import drop_undeclared
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers.messages import Died, Ran, RunProgram
from lockstep.harness.workers.pool import Pool

MOST_COMPARED = 32
"""Failures of a check that other backends run, too: one of each cause first."""


def compare_backends(
    pool: Pool, pairs: Sequence[Pair], watch: Callable[[], None]
) -> None:
    """Notes what other backends answer to programs that diverge: whether they agree with
    the reference tells whom to suspect.

    Args:
        pool: runs the programs.
        pairs: of the check, with their failures.
        watch: see `Pool.run`.
    """
    seen: Counter[int] = Counter()
    places = []
    for pair in pairs:
        for n, failure in enumerate(pair.failures):
            seen[failure.cause] += 1
            places.append((seen[failure.cause], pair, n))
    asked = [pair for pair in pairs if not pair.crashes]
    for _, pair, n in sorted(places, key=itemgetter(0))[:MOST_COMPARED]:
        failure = pair.failures[n]
        others = [one for one in asked if one.kind == pair.kind and one is not pair]
        answers, died = ask(pool, failure, others, watch)
        pair.failures[n] = replace(failure, answers=answers)
        asked = [one for one in asked if one.backend not in died]


def ask(
    pool: Pool, failure: Failure, others: Sequence[Pair], watch: Callable[[], None]
) -> tuple[dict[str, str], list[str]]:
    """Runs a program on other backends, as far as they declare it; see
    `Failure.answers`. Also returns those that have ended the process, or hung."""
    programs = [drop_undeclared(failure.program, one.declared) for one in others]
    asked = zip(others, programs, strict=True)
    tasks = [RunProgram(one.backend, program.to_json()) for one, program in asked]
    found: dict[str, str] = {}
    died = []
    for task, event in pool.run(deque(tasks), watch):
        if isinstance(event, Ran):
            found[task.backend] = compare(event.divergence, failure)
        elif isinstance(event, Died):
            died.append(task.backend)
    answers = {one.backend: found[one.backend] for one in others if one.backend in found}
    return answers, died


def compare(divergence: Divergence | None, failure: Failure) -> str:
    """One word for what a backend answers, beside the one that has failed."""
    if divergence is None:
        return "agrees"
    own = failure.divergence
    same = divergence.step, divergence.got, divergence.message
    if same == (own.step, own.got, own.message):
        return "same"
    return divergence.get_signature(failure.program)
