"""Every program up to a length over a small domain, one after the other.

Programs that begin alike form a tree. Only those that cannot be longer are run: each
runs its beginnings too. Of programs that differ in nothing but names, such as which of
two sequences is called 0, the first one stands for all. None is left out because the
reference is in a state that it was in before: an implementation may be in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.contract import Contract, Domain, Renaming
from lockstep.harness.contracts.operation import Config, Op, advance
from lockstep.harness.programs.program import Program

# --- the part of a domain that a backend declares ---------------------------------------


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
            if value in allowed and rules.why_illegal(candidate) is None:
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


# --- the tree of programs ---------------------------------------------------------------


Path = tuple[int, ...]
"""The moves of a program, by number."""

IsKnown = Callable[[Op, Any], bool]
"""Whether an operation leads to a known divergence in the state of a model."""


@dataclass(frozen=True)
class Branch:
    """A program in the tree.

    path, ops: its moves by number, and the operations they came to. covered: how many
    programs are run with it that no program before it has run: itself, and beginnings.
    """

    path: Path
    ops: Sequence[Op]
    covered: int


ROOT = Branch((), (), 0)


class Walk:
    """The tree of the programs over the part of a domain that a backend declares.

    avoided: how many programs were left out because they end with what the ledger knows;
    those that would go on behind are not counted.
    """

    def __init__(self, rules: Contract, world: World, is_known: IsKnown) -> None:
        self.rules, self.world, self.is_known = rules, world, is_known
        self.avoided = 0

    def make_program(self, branch: Branch) -> Program:
        return Program(self.rules.name, self.world.config, branch.ops)

    def find_longest(self, start: Branch, depth: int) -> Iterator[Branch]:
        """The programs behind `start`, of at most `depth` operations, that cannot be
        longer."""
        longer = self.list_longer(start) if len(start.path) < depth else []
        if not longer:
            yield start
        for branch in longer:
            yield from self.find_longest(branch, depth)

    def follow(self, path: Path, covered: int) -> Branch:
        """The program with these moves; covered: what is run with it first."""
        model = self.rules.open_model(self.world.config, rows=False)
        ops: list[Op] = []
        for number in path:
            op = self.rules.complete_move(self.world.moves[number], model)
            assert op is not None, "a path holds moves that can be made"
            advance(self.rules.operations, op, model)
            ops.append(op)
        return Branch(path, ops, covered)

    def list_longer(self, start: Branch) -> list[Branch]:
        """The programs with one operation more that are legal, new, and not known to
        diverge. The first of them covers what `start` did."""
        model = self.replay(start.ops)
        longer: list[Branch] = []
        for number, move in enumerate(self.world.moves):
            path = (*start.path, number)
            op = self.rules.complete_move(move, model) if self.is_first(path) else None
            if op is None or self.rules.operations[op["op"]].why_illegal(op, model):
                continue
            if self.is_known(op, model):
                self.avoided += 1
                continue
            covered = 1 if longer else start.covered + 1
            longer.append(Branch(path, [*start.ops, op], covered))
        return longer

    def replay(self, ops: Sequence[Op]) -> Any:
        """The reference after these operations."""
        model = self.rules.open_model(self.world.config, rows=False)
        for op in ops:
            advance(self.rules.operations, op, model)
        return model

    def is_first(self, path: Path) -> bool:
        """Whether no program that differs in names alone comes before."""
        return all(
            path <= tuple(symmetry[move] for move in path)
            for symmetry in self.world.symmetries
        )
