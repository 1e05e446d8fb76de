"""Which backends run the same programs.

A program is drawn once for all backends that declare the same of a kind, and the
reference runs once for all of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.jobs.outcome import Pair
from lockstep.harness.programs.ledger import list_undeclared
from lockstep.harness.workers.messages import Declared

Key = tuple[str, str, str]
"""See `Pair.key`."""


def group_pairs(
    pairs: Sequence[Pair], declared: Mapping[str, Declared]
) -> list[list[Pair]]:
    """Groups the pairs of a check that can run the same programs.

    Args:
        pairs: of the check.
        declared: backend → its declaration.

    Returns:
        Each group with the pair first for which its programs are drawn.
    """
    groups: list[list[Pair]] = []
    for pair in sorted(pairs, key=lambda pair: -len(pair.declared.config)):
        for group in groups:
            if can_follow(pair, group[0], declared):
                group.append(pair)
                break
        else:
            groups.append([pair])
    return groups


def can_follow(pair: Pair, lead: Pair, declared: Mapping[str, Declared]) -> bool:
    """Says whether all programs of a pair, and no others, can be drawn for another one.

    Both declare the same, apart from fields of the config on which no answer depends, and
    neither has a ledger, which would leave out programs that are its own.
    """
    rules = CONTRACTS[pair.contract]
    if pair.key[1:] != lead.key[1:] or pair.share != lead.share:
        return False
    events = [declared[member.backend] for member in (pair, lead)]
    if any(event.has_ledger or event.name for event in events):
        return False  # what is left out, and how long a driver may take, is its own
    dropped = list_undeclared(rules, pair.declared)
    return events[0].dtypes == events[1].dtypes and (
        strip(pair.declared, dropped) == strip(lead.declared, dropped)
    )


def strip(declared: Kind, dropped: Container[str]) -> Kind:
    """Strips what a kind declares of some fields of the config, and of its memory."""
    config = {
        name: values for name, values in declared.config.items() if name not in dropped
    }
    return replace(declared, config=config, inputs="copied", held=None)
