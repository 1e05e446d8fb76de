"""The guided drawer: what it remembers, and how it changes programs of a corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Duty, Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.programs.corpus import find_cells
from lockstep.harness.programs.generate import guided
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.generate.guided import CHANGES, GuidedDrawer
from lockstep.harness.programs.program import Program, breaks_usage, parse_program, walk
from tests.harness.building import KINDS, declare_all, make, trim, update

FIRST = [(rules.name, rules.kinds[0]) for rules in CONTRACTS.values()]

every_contract = pytest.mark.parametrize(("contract", "kind"), FIRST)
every_pair = pytest.mark.parametrize(("contract", "kind"), KINDS)


def open_drawer(
    contract: str, kind: str, declared: Kind | None = None, of: Any = GuidedDrawer
) -> Any:
    drawer = of(contract, kind, declared or declare_all(contract, kind), ("float32",))
    drawer.start_from([])
    return drawer


def draw(drawer: Drawer, count: int, seed: int = 3) -> list[Program]:
    """Draws programs; all of them agree."""
    source, programs = RandomSource(seed), []
    for _ in range(count):
        programs.append(drawer.draw(source))
        drawer.learn(programs[-1], len(programs[-1].ops))
    return programs


def make_corpus(contract: str, kind: str, count: int = 5) -> list[Program]:
    drawer = open_drawer(contract, kind)
    draw(drawer, count, seed=1)
    return list(drawer.list_kept())


@pytest.fixture
def always_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "CHANGED", 1)


@every_contract
def test_programs_follow_from_seed_and_corpus(contract: str, kind: str) -> None:
    corpus = make_corpus(contract, kind, 2)
    drawn = []
    for seed, given in ((1, []), (1, []), (2, []), (1, corpus), (1, corpus)):
        drawer = open_drawer(contract, kind)
        drawer.start_from(given)
        drawn.append(draw(drawer, 12, seed))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != drawn[3] == drawn[4]


@every_pair
def test_every_change_makes_a_legal_program(
    contract: str, kind: str, always_changed: None
) -> None:
    """Nothing is skipped, and no rule of usage is broken, whatever is cut and put
    together; the result is a document."""
    drawer = open_drawer(contract, kind)
    drawer.start_from(make_corpus(contract, kind))
    for program in draw(drawer, 10):
        assert [step.skipped for step in walk(program, rows=False) if step.skipped] == []
        assert not breaks_usage(program)
        assert parse_program(program.to_json(), "here") == program


@every_contract
def test_what_it_keeps_has_a_bound(contract: str, kind: str) -> None:
    """One program for each cell at most, however many are drawn, and each is the shortest
    that reaches it."""
    drawer = open_drawer(contract, kind)
    programs = draw(drawer, 12)
    kept = drawer.list_kept()
    lengths: dict[Any, int] = {}
    for program in programs:
        for cell, length in find_cells(program).items():
            lengths[cell] = min(length, lengths.get(cell, length))
    assert len(kept) <= len(lengths) == len(drawer.reached.programs)
    for cell, program in drawer.reached.programs.items():
        assert len(program.ops) == lengths[cell] == find_cells(program)[cell]
    names, states = CONTRACTS[contract].operations, CONTRACTS[contract].states
    assert len(drawer.met) <= len(names) * len(states)


def test_a_beginning_that_diverges_is_not_kept() -> None:
    drawer = open_drawer("layer", "kv")
    program = drawer.draw(RandomSource(1))
    drawer.learn(program, 3)
    assert max(len(kept.ops) for kept in drawer.list_kept()) <= 3
    drawer.learn(program, len(program.ops))
    assert max(len(kept.ops) for kept in drawer.list_kept()) > 3


def test_what_was_given_is_not_kept_again() -> None:
    corpus = make_corpus("layer", "kv")
    drawer = open_drawer("layer", "kv")
    drawer.start_from(corpus)
    assert drawer.list_kept() == []
    draw(drawer, 5)
    assert not {p.digest() for p in drawer.list_kept()} & {p.digest() for p in corpus}


def test_a_changed_program_keeps_the_duties_of_callers(always_changed: None) -> None:
    """They depend on where the operation is then, not on where it came from."""
    duty = Duty({"op": "trim", "offset": [3, None]}, "trim of three tokens or more")
    declared = replace(declare_all("layer", "kv"), duties=(duty,))
    drawer = open_drawer("layer", "kv", declared)
    drawer.start_from([make(update(2), trim(1)), make(update(5), trim(2), update(1))])
    trims = 0
    for program in draw(drawer, 60):
        for step in walk(program, rows=False):
            if step.op["op"] == "trim" and step.op["cache"] in step.model.caches:
                trims += 1
                assert step.model.get_facts(step.op)["offset"] < 3
    assert trims > 10


PROGRAM = [{"op": "a"}, {"op": "b"}, {"op": "c"}]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_of_any_program(change: Any) -> None:
    """Also of one that has a single operation; none gets longer than both together by
    more than a few."""
    source = RandomSource(4)
    for program in (PROGRAM, PROGRAM[:1]):
        changed = [change(source, program, PROGRAM[1:]) for _ in range(30)]
        assert max(map(len, changed)) <= 2 * len(PROGRAM)
        names = {op if isinstance(op, str) else op["op"] for ops in changed for op in ops}
        assert names <= {"a", "b", "c"}
