"""Enumerates every program up to a given length over a small domain.

The programs form a tree: the parent of a program is the program without its last
operation. Only the leaves of the tree run, since a leaf also runs all of its prefixes. If
programs differ only in names, such as which of two sequences is called 0, only the first
program runs. A program runs even if the reference returns to an earlier state, because
the implementation may be in a different state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.contract import Contract, Domain, Renaming
from lockstep.harness.contracts.operation import Config, Op, advance
from lockstep.harness.programs.program import Program

# --- the subset of a domain that a backend declares -------------------------------------


@dataclass(frozen=True)
class World:
    """The subset of a domain that a backend declares.

    Attributes:
        config: a complete config.
        moves: the operations that programs are made of.
        atomic: see `Kind.atomic`.
        symmetries: one item for each renaming that maps every move to a move: for each
            move, the number of the move that replaces it.
    """

    config: Config
    moves: Sequence[Op]
    atomic: bool
    symmetries: Sequence[Sequence[int]]


def fit(
    domain: Domain, rules: Contract, kind: str, declared: Kind, dtypes: Sequence[str]
) -> World:
    """Returns the subset of the domain that a backend declares.

    If the backend declares none of the domain's values for a config field, the field
    keeps its value from the plainest config.
    """
    config = rules.get_plain_config(kind, declared, dtypes)
    for name, values in domain.config.items():
        plain = [rules.config[name].get("default")] if name in rules.opt_in else values
        allowed = declared.config.get(name, plain)
        for value in values:
            candidate = {**config, name: value}
            if value in allowed and rules.why_illegal(candidate) is None:
                config = candidate
                break
    moves = [move for move in domain.moves if move["op"] in declared.operations]
    symmetries = list_symmetries(moves, domain.renamings)
    return World(config, moves, declared.atomic, symmetries)


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
    """Makes a hashable key that is equal for equal values."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, make_key(item)) for name, item in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(make_key, value))
    return value


# --- the tree of programs ---------------------------------------------------------------


Path = tuple[int, ...]
"""The numbers of a program's moves in `World.moves`."""

IsKnown = Callable[[Sequence[Op], Op, Any], bool]
"""Returns whether an operation leads to a known divergence.

The arguments are the earlier operations, the operation, and the model before it."""


@dataclass(frozen=True)
class Branch:
    """A program in the tree.

    Attributes:
        path: the numbers of its moves.
        ops: the operations that were made from the moves.
        covered: how many programs run for the first time with this branch: the program
            itself, and each prefix that no earlier program has run.
    """

    path: Path
    ops: Sequence[Op]
    covered: int


ROOT = Branch((), (), 0)


class Walk:
    """The tree of all programs over the subset of a domain that a backend declares.

    Args:
        rules: the contract.
        world: the subset of the domain.
        is_known: returns whether an operation leads to a known divergence.

    Attributes:
        avoided: the number of programs that were skipped because their last operation
            leads to a known divergence. Extensions of these programs are not counted.
    """

    def __init__(self, rules: Contract, world: World, is_known: IsKnown) -> None:
        self.rules, self.world, self.is_known = rules, world, is_known
        self.avoided = 0

    def make_program(self, branch: Branch) -> Program:
        return Program(self.rules.name, self.world.config, branch.ops)

    def find_longest(self, start: Branch, depth: int) -> Iterator[Branch]:
        """Iterates over the leaves below `start`, with at most `depth` operations."""
        longer = self.list_longer(start) if len(start.path) < depth else []
        if not longer:
            yield start
        for branch in longer:
            yield from self.find_longest(branch, depth)

    def follow(self, path: Path, covered: int) -> Branch:
        """Returns the program with these moves; `covered` as in `Branch`."""
        model = self.rules.open_model(self.world.config, rows=False)
        ops: list[Op] = []
        for number in path:
            op = self.rules.complete_move(self.world.moves[number], model)
            assert op is not None, "a path holds moves that can be made"
            advance(self.rules.operations, op, model)
            ops.append(op)
        return Branch(path, ops, covered)

    def list_longer(self, start: Branch) -> list[Branch]:
        """Lists the children of `start` that are legal, new and not known to diverge.

        The first child also covers the programs that `start` covers.
        """
        model = self.replay(start.ops)
        clearing = None if self.world.atomic else self.rules.get_clearing(model)
        longer: list[Branch] = []
        for number, move in enumerate(self.world.moves):
            path = (*start.path, number)
            op = self.rules.complete_move(move, model) if self.is_first(path) else None
            if op is None or self.rules.operations[op["op"]].why_illegal(op, model):
                continue
            if clearing not in (None, op):
                continue
            if self.is_known(start.ops, op, model):
                self.avoided += 1
                continue
            covered = 1 if longer else start.covered + 1
            longer.append(Branch(path, [*start.ops, op], covered))
        return longer

    def replay(self, ops: Sequence[Op]) -> Any:
        """Returns the reference after these operations."""
        model = self.rules.open_model(self.world.config, rows=False)
        for op in ops:
            advance(self.rules.operations, op, model)
        return model

    def is_first(self, path: Path) -> bool:
        """Returns whether a path is the first of all paths that differ only in names."""
        return all(
            path <= tuple(symmetry[move] for move in path)
            for symmetry in self.world.symmetries
        )
