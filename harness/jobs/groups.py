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
    neither has a ledger, which would leave out programs that are its own.
    """
    rules = CONTRACTS[pair.contract]
    if pair.key[1:] != lead.key[1:] or pair.share != lead.share:
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
