"""The part of a contract's domain that a backend declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.contract import Contract, Domain, Renaming
from lockstep.harness.contracts.operation import Config, Op


@dataclass(frozen=True)
class World:
    """The part of a domain that a backend declares.

    config: complete. symmetries: for each renaming that leads from moves to moves, the
    number of the move that stands in the place of each.
    """

    config: Config
    moves: Sequence[Op]
    symmetries: Sequence[Sequence[int]]


def fit(
    domain: Domain, rules: Contract, kind: str, declared: Kind, dtypes: Sequence[str]
) -> World:
    """The part of the domain that a backend declares. A field for which it declares none
    of the values stays as in its plainest config."""
    config = rules.get_plain_config(kind, declared, dtypes)
    for name, values in domain.config.items():
        plain = [rules.config[name].get("default")] if name in rules.opt_in else values
        allowed = declared.config.get(name, plain)
        for value in values:
            candidate = {**config, name: value}
            if value in allowed and rules.why_not(candidate) is None:
                config = candidate
                break
    moves = [move for move in domain.moves if move["op"] in declared.operations]
    return World(config, moves, list_symmetries(moves, domain.renamings))


def list_symmetries(
    moves: Sequence[Op], renamings: Sequence[Renaming]
) -> list[Sequence[int]]:
    numbers = {make_key(move): number for number, move in enumerate(moves)}
    symmetries: list[Sequence[int]] = []
    for renaming in renamings:
        renamed = [numbers.get(make_key(renaming(move)), -1) for move in moves]
        if -1 not in renamed and renamed != sorted(renamed):
            symmetries.append(renamed)
    return symmetries


def make_key(value: Any) -> Any:
    """The same for what is equal, fit for a dict."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, make_key(part)) for name, part in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(make_key, value))
    return value
