"""Cells: which there are, that all of them are reached, and that it is said if not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.states import Unreachable
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import PROFILES, SLICE, Settings
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.hypothesis import generate
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.console import list_empty_cells, make_details
from lockstep.harness.reports.outcome_file import Cells, summarize, summarize_pair
from lockstep.harness.workers.registry import load
from lockstep.harness.workers.slices import get_seed
from tests.harness.building import KINDS, count_cells, declare_all, draw_some

every_kind = pytest.mark.parametrize(("contract", "kind"), KINDS)


def declare(contract: str, kind: str) -> Kind:
    """As torch-cpu does."""
    pytest.importorskip("torch")
    return load("torch-cpu").contracts[contract][kind]


DTYPES = "float32", "float16", "bfloat16"


def draw(contract: str, kind: str, declared: Kind, most: int) -> Iterator[Program]:
    """The programs of a check, without a backend."""
    drawer = Drawer(contract, kind, declared, DTYPES)
    for number, programs in Settings(programs=most).list_slices():
        yield from draw_slice(drawer, number, programs)


def draw_slice(drawer: Drawer, number: int, programs: int) -> list[Program]:
    drawn: list[Program] = []
    seed = get_seed(0, drawer.rules.name, drawer.kind, number)
    generate(programs, seed, drawer.draw, drawn.append)
    return drawn


@every_kind
def test_the_ci_profile_reaches_every_cell_and_no_other(contract: str, kind: str) -> None:
    """Each of them often, so that none is missed where a pair may end early."""
    declared, ci = declare(contract, kind), PROFILES["ci"]
    drawer = Drawer(contract, kind, declared, DTYPES)
    pair = Pair("here", contract, kind, declared)
    assert ci.least is not None
    for number, programs in Settings(programs=ci.programs).list_slices():
        if number * SLICE >= ci.least * CONTRACTS[contract].depth:
            if pair.is_explored:
                break
            drawer.aim_at(pair.aim())
        count_cells(draw_slice(drawer, number, programs), pair.coverage)
    assert pair.list_rare() == []
    assert set(pair.coverage) <= set(pair.cells), "a rule says that it cannot be reached"


@every_kind
def test_without_misuse_fewer_cells_can_be_reached(contract: str, kind: str) -> None:
    """And none beyond those."""
    declared = replace(declare(contract, kind), refuses=False)
    counted = count_cells(draw_some(125, contract, kind, declared, dtypes=DTYPES))
    cells = CONTRACTS[contract].list_cells(kind, declared)
    assert set(counted) <= set(cells)
    assert len(counted) > 0.8 * len(cells)
    every = CONTRACTS[contract].list_cells(kind, replace(declared, refuses=True))
    assert set(cells) <= set(every)
    assert len(cells) < len(every) or kind in ("kv", "rotating", "state", "encoder")


def test_with_fewer_operations_there_are_fewer_cells() -> None:
    declared = Kind(frozenset({"update", "trim"}), {"window": (1,)})
    cells = CONTRACTS["layer"].list_cells("rotating", declared)
    assert {operation for _, operation in cells} == {"update", "trim"}
    states = {state for state, _ in cells}
    assert {"window-one", "refusal", "rewind"} <= states
    assert not states & {"clone", "restore", "snapshot-live", "mid-ring", "at-step"}
    counted = count_cells(draw("layer", "rotating", declared, 250))
    assert {cell for cell in cells if not counted[cell]} == set()


def test_batches_that_none_is_extracted_from_have_no_single_caches() -> None:
    operations = frozenset({"open", "update", "trim", "clone", "free"})
    declared = Kind(operations, {"pads_left": (True,), "chunk": (None,)})
    cells = CONTRACTS["batched"].list_cells("batch-kv", declared)
    assert {operation for state, operation in cells if state == "single"} == {"open"}
    counted = count_cells(draw("batched", "batch-kv", declared, 250))
    assert {cell for cell in cells if not counted[cell]} == set()
    assert set(counted) <= set(cells)
    more = replace(declared, operations=operations | {"extract"})
    assert ("single", "trim") in CONTRACTS["batched"].list_cells("batch-kv", more)


def test_a_rule_leaves_out_what_it_says() -> None:
    rule = Unreachable("why", ("a", "b"), only=("x", "y"), never=("y",))
    found = {(s, o) for s in "abc" for o in "xyz" if not rule.holds((s, o))}
    assert found == {("a", "x"), ("b", "x"), ("c", "x"), ("c", "y"), ("c", "z")}


def test_every_rule_says_why_and_names_states() -> None:
    for contract, kind in KINDS:
        rules = CONTRACTS[contract]
        for rule in rules.list_unreachable(kind, declare_all(contract, kind)):
            assert len(rule.why.split()) > 2
            assert set(rule.states) <= set(rules.states)
            assert {*(rule.only or ()), *rule.never} <= {*rules.operations}


def make_pair(kind: str, reached: int) -> Pair:
    """A pair of which only the first cells were reached."""
    name, declared = "a-backend-with-a-long-name", declare_all("layer", kind)
    pair = Pair(name, "layer", kind, declared, programs=9)
    pair.coverage.update(dict.fromkeys(pair.cells[:reached], 5))
    return pair


def show(outcome: Outcome, verbose: bool = False) -> str:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(make_details(summarize(outcome).pairs))
        for line in list_empty_cells(summarize(outcome), verbose):
            console.print(line)
    return captured.get()


def test_an_empty_cell_is_reported() -> None:
    whole, short = make_pair("kv", 10_000), make_pair("rotating", 10_000)
    missed = short.cells[5]
    del short.coverage[missed]
    text = show(Outcome(Settings(), pairs=[whole, short]))
    assert f"{len(whole.cells)}/{len(whole.cells)}" in text
    assert f"{len(short.cells) - 1}/{len(short.cells)}" in text
    words = " ".join(text.split())
    assert f"1 of {len(short.cells)} cells never reached: {' × '.join(missed)}" in words
    assert words.count("never reached") == 1
    state, operation = missed
    listed = summarize_pair(short).cells
    assert listed == Cells(len(short.cells), {state: [operation]})
    assert summarize_pair(whole).cells.empty == {}


def test_many_empty_cells_take_a_few_lines() -> None:
    pairs = [
        make_pair(kind, reached) for kind in ("kv", "rotating") for reached in (0, 20, 40)
    ]
    text = show(Outcome(Settings(), pairs=pairs))
    assert max(map(len, text.splitlines())) <= 80
    missed = [len(pair.cells) - pair.count_reached() for pair in pairs]
    assert "never reached" not in text  # but for the last line of the report
    listed = show(Outcome(Settings(), pairs=pairs), verbose=True)
    assert listed.count(" never reached: ") == sum(map(bool, missed))
    for pair in pairs:
        empty = summarize_pair(pair).cells.empty
        assert sum(map(len, empty.values())) == len(pair.cells) - pair.count_reached()


def test_a_batch_that_gives_no_row_away_has_no_single_caches() -> None:
    """Without `extract` no program comes upon one, and every other cell is reached."""
    declared = Kind(frozenset({"open", "update"}))
    cells = CONTRACTS["batched"].list_cells("batch-kv", declared)
    programs = draw_some(200, "batched", "batch-kv", declared)
    assert set(count_cells(programs)) == set(cells)
