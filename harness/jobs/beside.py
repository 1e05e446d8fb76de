"""Backends beside each other: which run the same programs, and how their answers differ.

A program is drawn once for all backends that declare the same of a kind, and the
reference runs once for all of them. A program that diverges runs on all others, too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.jobs.outcome import Failure, Pair
from lockstep.harness.programs.ledger import drop_undeclared, list_undeclared
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers.messages import Declared, Ran, RunProgram
from lockstep.harness.workers.pool import Pool

Key = tuple[str, str, str]
"""See `Pair.key`."""


# --- which run the same programs --------------------------------------------------------


def group_pairs(
    pairs: Sequence[Pair], declared: Mapping[str, Declared]
) -> dict[Key, list[Pair]]:
    """Chooses, for some of the pairs, others that run their programs beside them.

    Args:
        pairs: of the check.
        declared: backend → its declaration.

    Returns:
        The key of a pair → the others, of which none has others of its own.
    """
    groups: dict[Key, tuple[Pair, list[Pair]]] = {}
    for pair in sorted(pairs, key=lambda pair: -len(pair.declared.config)):
        for lead, others in groups.values():
            if can_follow(pair, lead, declared):
                others.append(pair)
                break
        else:
            groups[pair.key] = pair, []
    return {key: others for key, (_, others) in groups.items() if others}


def can_follow(pair: Pair, lead: Pair, declared: Mapping[str, Declared]) -> bool:
    """Says whether all programs of a pair, and no others, can be drawn for another one.

    Both declare the same, apart from fields of the config on which no answer depends, and
    neither chooses what its programs lead to.
    """
    rules = CONTRACTS[pair.contract]
    if pair.key[1:] != lead.key[1:] or pair.share != lead.share or rules.leaves_choices:
        return False
    sides = [declared[one.backend] for one in (pair, lead)]
    if any(side.has_ledger or side.name for side in sides):
        return False  # what is left out, and how long a driver may take, is its own
    dropped = list_undeclared(rules, pair.declared)
    return sides[0].dtypes == sides[1].dtypes and (
        strip(pair.declared, dropped) == strip(lead.declared, dropped)
    )


def strip(declared: Kind, dropped: Container[str]) -> Kind:
    """What a kind declares about its programs, without some fields of the config."""
    config = {name: own for name, own in declared.config.items() if name not in dropped}
    return replace(declared, config=config, inputs="copied", held=None)


# --- what others answer -----------------------------------------------------------------


MOST_COMPARED = 32
"""Failures of a check that other backends run, too: one of each cause first."""


def compare_backends(pool: Pool, pairs: Sequence[Pair]) -> None:
    """Notes what other backends answer to programs that diverge: whether they agree with
    the reference tells whom to suspect.

    Args:
        pool: runs the programs.
        pairs: of the check, with their failures.
    """
    seen: Counter[int] = Counter()
    places = []
    for pair in pairs:
        for n, failure in enumerate(pair.failures):
            seen[failure.cause] += 1
            places.append((seen[failure.cause], pair, n))
    for _, pair, n in sorted(places, key=itemgetter(0))[:MOST_COMPARED]:
        failure = pair.failures[n]
        others = [one for one in pairs if one.kind == pair.kind and one is not pair]
        beside = run_beside(pool, failure, [one for one in others if not one.crashes])
        pair.failures[n] = replace(failure, beside=beside)


def run_beside(pool: Pool, failure: Failure, others: Sequence[Pair]) -> dict[str, str]:
    """Runs a program on other backends, as far as they declare it; see
    `Failure.beside`."""
    programs = [drop_undeclared(failure.program, one.declared) for one in others]
    asked = zip(others, programs, strict=True)
    tasks = [RunProgram(one.backend, program.to_json()) for one, program in asked]
    found: dict[str, str] = {}
    for task, event in pool.run(deque(tasks)):
        if isinstance(event, Ran):
            found[task.backend] = compare(event.divergence, failure)
    return {one.backend: found[one.backend] for one in others if one.backend in found}


def compare(divergence: Divergence | None, failure: Failure) -> str:
    """One word for what a backend answers, beside the one that has failed."""
    if divergence is None:
        return "agrees"
    own = failure.divergence
    same = divergence.step, divergence.got, divergence.message
    if same == (own.step, own.got, own.message):
        return "same"
    return divergence.get_signature(failure.program)
