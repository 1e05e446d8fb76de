"""The tree of all programs over a domain, against a count that takes no short cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Op, advance
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk, World, fit, make_key
from lockstep.harness.programs.program import Program, parse_program
from tests.harness.building import KINDS, declare_all

EVERY_KIND = [(CONTRACTS[contract], kind) for contract, kind in KINDS]


def ask_for_all(rules: Contract, kind: str, size: str) -> World:
    """The domain for a backend that declares everything."""
    domain = rules.get_domain(kind, size)
    config = {name: tuple(values) for name, values in domain.config.items()}
    declared = declare_all(rules.name, kind, config=config)
    return fit(domain, rules, kind, declared, ["float32"])


def make_walk(rules: Contract, world: World) -> Walk:
    return Walk(rules, world, lambda ops, op, model: False)


def list_all(rules: Contract, world: World, depth: int) -> Iterator[list[Op]]:
    """Every legal program of up to `depth` operations, by trying all."""
    for length in range(1, depth + 1):
        for moves in product(world.moves, repeat=length):
            ops = complete(rules, world, moves)
            if ops is not None:
                yield ops


def complete(rules: Contract, world: World, moves: Sequence[Op]) -> list[Op] | None:
    model = rules.open_model(world.config)
    ops: list[Op] = []
    for move in moves:
        op = rules.complete_move(move, model)
        if op is None or rules.operations[op["op"]].why_illegal(op, model):
            return None
        advance(rules.operations, op, model)
        ops.append(op)
    return ops


def reread(program: Program) -> str:
    """Returns why a file with this program does not give it back; empty if it does."""
    try:
        again = parse_program(program.to_json(), "here")
    except UsageError as error:
        return str(error)
    same = (again.config, [*again.ops]) == (program.config, [*program.ops])
    return "" if same else "it is another"


def list_beginnings(programs: Sequence[Sequence[Op]]) -> set[Any]:
    return {make_key(ops[:end]) for ops in programs for end in range(1, len(ops) + 1)}


@pytest.mark.parametrize(("size", "depth"), [("tiny", 3), ("small", 2)])
@pytest.mark.parametrize(("rules", "kind"), EVERY_KIND, ids=[k for _, k in EVERY_KIND])
def test_every_program_is_run_or_stands_for_one_that_is(
    rules: Contract, kind: str, size: str, depth: int
) -> None:
    """All programs that there are: each is a beginning of one that is run, or is so with
    its names exchanged."""
    world = ask_for_all(rules, kind, size)
    walk = make_walk(rules, world)
    found = list(walk.find_longest(ROOT, depth))
    assert set(map(reread, map(walk.make_program, found))) == {""}
    run = list_beginnings([branch.ops for branch in found])
    assert sum(branch.covered for branch in found) == len(run)
    renamings = rules.get_domain(kind, size).renamings
    assert len(world.symmetries) <= len(renamings)
    count = 0
    for ops in list_all(rules, world, depth):
        count += 1
        renamed = [list(map(renaming, ops)) for renaming in renamings]
        assert any(make_key(twin) in run for twin in [ops, *renamed])
    assert len(run) <= count
    if not world.symmetries:
        assert len(run) == count


@pytest.mark.parametrize(("rules", "kind"), EVERY_KIND, ids=[k for _, k in EVERY_KIND])
def test_parts_make_the_whole(rules: Contract, kind: str) -> None:
    walk = make_walk(rules, ask_for_all(rules, kind, "tiny"))
    whole = list(walk.find_longest(ROOT, 4))
    parts = [
        branch
        for start in walk.find_longest(ROOT, 2)
        for branch in walk.find_longest(walk.follow(start.path, start.covered), 4)
    ]
    assert parts == whole


@pytest.mark.parametrize(("rules", "kind"), EVERY_KIND, ids=[k for _, k in EVERY_KIND])
def test_every_move_can_be_made(rules: Contract, kind: str) -> None:
    world = ask_for_all(rules, kind, "small")
    walk, made, starts = make_walk(rules, world), set[int](), [ROOT]
    for _ in range(6):
        longer = [branch for start in starts for branch in walk.list_longer(start)]
        fresh = [branch for branch in longer if branch.path[-1] not in made]
        made |= {branch.path[-1] for branch in longer}
        starts = (fresh + longer)[:40]
        assert {reread(walk.make_program(start)) for start in starts} == {""}
    assert made == set(range(len(world.moves)))


def test_what_a_backend_does_not_declare_is_left_out() -> None:
    rules = CONTRACTS["layer"]
    declared = Kind(frozenset({"update", "trim"}), {"window": (4, 8), "step": (4, 2)})
    domain = rules.get_domain("rotating", "small")
    world = fit(domain, rules, "rotating", declared, ["float16"])
    assert {move["op"] for move in world.moves} == {"update", "trim"}
    wanted = {"window": 4, "step": 2, "dtype": "float16", "chunk": None, "keep": 0}
    assert {name: world.config[name] for name in wanted} == wanted


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize(("rules", "kind"), EVERY_KIND, ids=[k for _, k in EVERY_KIND])
def test_sizes_are_small(rules: Contract, kind: str, size: str) -> None:
    """The README promises them."""
    config = ask_for_all(rules, kind, size).config
    wanted = {"window": 2, "sequences": 2, "capacity": 4}
    for name, number in wanted.items():
        assert config.get(name) in (None, number), name
