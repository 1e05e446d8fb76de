"""Both sides of a program, step by step: as the executor sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockstep.harness.execution.recording.picture import EXTRA, MISSING, Bounds, Step
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers.registry import load
from tests.harness.pages.conftest import (
    FAULTS,
    MISBEHAVING,
    PLAIN,
    Recorded,
    make_program,
    update,
)

Play = Callable[..., Recorded]


def forward(positions: Sequence[int], sequences: Sequence[int]) -> dict[str, Any]:
    return {"op": "forward", "positions": positions, "sequences": sequences}


RING = make_program("layer", [update(4), update(2)], kind="rotating", window=2)
RECORDED = {
    "rotating_chunk_mid_ring": RING,
    "window_off_by_one": make_program("layer", [update(3)], kind="rotating", window=1),
    "chunk_boundary": make_program("layer", [update(5)], kind="kv", chunk=4),
    "exceptions_by_position": make_program(
        "unified", [{**forward([0, 1, 0], [0, 0, 0]), "except": [2]}], kind="causal"
    ),
    "swa_idle_sequence": make_program(
        "unified",
        [forward([2, 0], [0, 0]), forward([0], [1]),
         {"op": "can_resume", "sequence": 0, "position": 0}],
        kind="swa", window=1, sequences=2,
    ),
    "exact_hit_empty": make_program(
        "prefix",
        [{"op": "begin", "tokens": [1]}, {"op": "feed", "count": 1}, {"op": "close"},
         {"op": "begin", "tokens": [1]}],
        kind="session",
    ),
}  # fmt: skip
"""Programs that show a planted mistake, by its name."""


def list_marks(step: Step) -> dict[str, list[int]]:
    """The tags that are marked as missing, and as too much, in the first wrong row."""
    for part in step.parts:
        for grid in part.grids:
            for row in grid.rows:
                if row.is_wrong:
                    found: dict[str, list[int]] = {MISSING: [], EXTRA: []}
                    for chip, mark in zip(grid.columns, row.squares, strict=True):
                        if mark in found and chip.tag is not None:
                            found[mark].append(chip.tag)
                    return found
    return {}


@pytest.mark.parametrize("name", RECORDED)
def test_the_step_that_diverges_is_marked_and_no_other(play: Play, name: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    steps, divergence = play(RECORDED[name], f"{FAULTS}:{name}")
    assert divergence is not None
    assert [step.number for step in steps] == list(range(divergence.step + 1))
    assert [step.is_wrong for step in steps] == [False] * divergence.step + [True]
    if divergence.what in ("contents", "mask"):
        marks = list_marks(steps[-1])
        assert sorted(marks[MISSING] + marks[EXTRA]) == sorted(divergence.tokens)


def test_the_ring_of_the_first_failure(play: Play) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    steps, _ = play(RING, f"{FAULTS}:rotating_chunk_mid_ring")
    (part,) = steps[1].parts
    assert [(chip.tag, chip.mark) for chip in part.held] == [
        (0, "old"), (1, "old"), (2, "old"), (3, "old"), (4, ""), (5, ""),
    ]  # fmt: skip
    (grid,) = part.grids
    assert [chip.tag for chip in grid.returned] == [4, 5]
    assert [row.squares for row in grid.rows] == ["snm", "ssn"]
    (offset,) = steps[1].facts
    assert (offset.expected, offset.got, offset.differs) == ("6", "6", False)


@pytest.mark.parametrize(
    ("contract", "kinds"),
    [
        ("layer", ("kv", "rotating", "state")),
        ("unified", ("swa", "encoder", "recurrent", "wrapper")),
        ("prefix", ("session", "trie", "slots")),
    ],
)
def test_a_backend_that_agrees_has_no_mark(
    play: Play, contract: str, kinds: Sequence[str]
) -> None:
    """Of programs at random, with as much as is drawn, and both sides show the same."""
    pytest.importorskip("torch", reason="torch is not installed")
    programs: list[Program] = []
    for kind, declared in load("torch-cpu").contracts[contract].items():
        if kind in kinds:
            drawer = Drawer(contract, kind, declared, ("float32",))
            GENERATORS["plain"](2, 1, drawer.draw, programs.append)
    assert len(programs) == 2 * len(kinds)
    bounds = Bounds(squares=1 << 30)
    for program in programs:
        steps, divergence = play(program, "torch-cpu", bounds=bounds)
        assert divergence is None
        assert not any(step.is_wrong for step in steps)
        alone, _ = play(program, "reference", bounds=bounds)
        for ours, both in zip(alone, steps, strict=True):
            assert (ours.words, ours.skipped) == (both.words, both.skipped)
            assert [part.held for part in ours.parts] == [
                part.held for part in both.parts
            ]
        for step in alone:
            assert not step.is_wrong
            assert not step.answered
            assert all(fact.got is None for fact in step.facts)


def test_a_backend_that_refuses_is_marked_by_that(play: Play) -> None:
    program = make_program("layer", [update(1), {"op": "trim", "count": 1}], **PLAIN)
    steps, divergence = play(program, f"{MISBEHAVING}:answers_in_numpy")
    assert divergence is not None and divergence.what == "result"
    (wrong,) = [fact for fact in steps[-1].facts if fact.differs]
    assert (wrong.name, wrong.expected) == ("trimmed", "1")


def test_a_backend_that_raises_leaves_what_is_expected(play: Play) -> None:
    steps, divergence = play(
        make_program("layer", [update(1)], **PLAIN), f"{MISBEHAVING}:raises"
    )
    assert divergence is not None and divergence.what == "error"
    assert not steps[0].answered
    assert steps[0].facts[0].expected == "1"
    assert [row.squares for row in steps[0].parts[0].grids[0].rows] == ["s"]


def test_the_reference_goes_on_alone(play: Play) -> None:
    program = make_program("layer", [update(1), update(2), update(1)], **PLAIN)
    steps, divergence = play(program, f"{MISBEHAVING}:correct", until=2)
    assert divergence is None
    assert [step.answered for step in steps] == [True, True, False]


def test_a_skipped_operation_says_why(play: Play) -> None:
    program = make_program(
        "layer", [update(1), {"op": "close", "snapshot": "s"}], **PLAIN
    )
    steps, _ = play(program, "reference")
    assert steps[1].skipped == "there is no snapshot s"
    assert not steps[1].facts


def test_looking_changes_nothing(play: Play) -> None:
    """A cache exists once it is named, and there may be 16: to ask what one holds that
    must not be made would make it."""
    names = [f"c{number}" for number in range(17)]
    ops = [update(1, cache=name) for name in [*names, names[-1]]]
    steps, _ = play(make_program("layer", ops, kind="kv"), "reference")
    assert [step.skipped for step in steps[-3:]] == [
        "there are 16 caches already",
        "there are 16 caches already",
        "there are 16 caches already",
    ]


def test_long_programs_are_left_out_in_the_middle(play: Play) -> None:
    ops = [update(1), {"op": "size"}] * 200
    bounds = Bounds(first=2, last=5, squares=30)
    program = make_program("layer", [*ops, {"op": "trim", "count": 1}], **PLAIN)
    steps, divergence = play(program, f"{MISBEHAVING}:answers_in_numpy", bounds=bounds)
    assert divergence is not None and divergence.step == 400
    assert [step.number for step in steps] == [0, 1, 396, 397, 398, 399, 400]
    assert [step.is_drawn for step in steps][-1]
    assert not steps[0].is_drawn and not steps[0].parts
    assert len(steps[-1].parts[0].held) == 32
    assert steps[-1].parts[0].held_left_out == 167


def test_steps_behind_the_divergence_do_not_count(play: Play) -> None:
    """The last steps are those before it, not those of the program."""
    ops = [*[update(1)] * 20, {"op": "trim", "count": 1}, *[update(1)] * 50]
    program = make_program("layer", ops, **PLAIN)
    bounds = Bounds(first=1, last=3)
    steps, divergence = play(program, f"{MISBEHAVING}:answers_in_numpy", bounds=bounds)
    assert divergence is not None and divergence.step == 20
    assert [step.number for step in steps] == [0, 18, 19, 20]


def test_the_failure_is_shown_that_the_file_names(play: Play) -> None:
    """Watching every array shows another failure of this backend first."""
    pytest.importorskip("torch", reason="torch is not installed")
    ops = [
        {"op": "clone", "into": "b"},
        update(1),
        update(1),
        update(1, cache="b"),
        update(1),
    ]
    program = make_program("layer", ops, kind="kv")

    def find(wanted: str | None) -> str:
        _, divergence = play(program, f"{FAULTS}:clone_shares", wanted=wanted)
        assert isinstance(divergence, Divergence)
        return divergence.get_signature(program)

    assert find(None) == "layer-kv-update-alias"
    assert find("layer-kv-update-contents") == "layer-kv-update-contents"
    assert find("no such signature") == "layer-kv-update-alias"
