"""Both sides of a program, step by step: as the executor sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain

import pytest

from lockstep.harness.execution.recording.picture import EXTRA, MISSING, Bounds, Step
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers.registry import load
from tests.harness.building import SMALL, draw_some, forward, make, trim, update
from tests.harness.commands import HERE
from tests.harness.pages.conftest import (
    FAULTS,
    Recorded,
)

Play = Callable[..., Recorded]


torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")

BEGIN = {"op": "begin", "tokens": [1]}
FEED, CLOSE = {"op": "feed", "count": 1}, {"op": "close"}
RESUME = {"op": "can_resume", "sequence": 0, "position": 0}
ROWS = forward([0, 1, 0], [0, 0, 0], **{"except": [2]})
make_unified = partial(make, contract="unified")

RING = make(update(4), update(2), kind="rotating", window=2)
RECORDED = {
    "rotating_chunk_mid_ring": RING,
    "window_off_by_one": make(update(3), kind="rotating", window=1),
    "chunk_boundary": make(update(5), chunk=4),
    "exceptions_by_position": make_unified(ROWS, kind="causal"),
    "swa_idle_sequence": make_unified(
        forward([2, 0], [0, 0]), forward([0], [1]), RESUME,
        kind="swa", window=1, sequences=2,
    ),
    "exact_hit_empty": make(
        BEGIN, FEED, CLOSE, BEGIN, contract="prefix", kind="session"
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


@torch
@pytest.mark.parametrize("name", RECORDED)
def test_the_step_that_diverges_is_marked_and_no_other(play: Play, name: str) -> None:
    steps, divergence = play(RECORDED[name], f"{FAULTS}:{name}")
    assert divergence is not None
    assert [step.number for step in steps] == list(range(divergence.step + 1))
    assert [step.is_wrong for step in steps] == [False] * divergence.step + [True]
    if divergence.what in ("contents", "mask"):
        marks = list_marks(steps[-1])
        assert sorted(marks[MISSING] + marks[EXTRA]) == sorted(divergence.tokens)


@torch
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
    declared = load("torch-cpu").contracts[contract]
    drawn = (draw_some(2, contract, kind, declared[kind], 1) for kind in kinds)
    bounds = Bounds(squares=1 << 30)
    for program in chain.from_iterable(drawn):
        steps, divergence = play(program, "torch-cpu", bounds=bounds)
        assert divergence is None
        assert not any(step.is_wrong for step in steps)
        alone, _ = play(program, "reference", bounds=bounds)
        for ours, both in zip(alone, steps, strict=True):
            assert (ours.words, ours.skipped) == (both.words, both.skipped)
            held = [[part.held for part in step.parts] for step in (ours, both)]
            assert held[0] == held[1]
            assert not ours.is_wrong and not ours.answered
            assert all(fact.got is None for fact in ours.facts)


def test_a_backend_that_refuses_is_marked_by_that(play: Play) -> None:
    program = make(update(1), trim(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:answers_in_numpy")
    assert divergence is not None and divergence.what == "result"
    (wrong,) = [fact for fact in steps[-1].facts if fact.differs]
    assert (wrong.name, wrong.expected) == ("trimmed", "1")


def test_a_backend_that_raises_leaves_what_is_expected(play: Play) -> None:
    steps, divergence = play(make(update(1), **SMALL), f"{HERE}:raises")
    assert divergence is not None and divergence.what == "error"
    assert not steps[0].answered
    assert steps[0].facts[0].expected == "1"
    assert [row.squares for row in steps[0].parts[0].grids[0].rows] == ["s"]


def test_the_reference_goes_on_alone(play: Play) -> None:
    program = make(update(1), update(2), update(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:correct", until=2)
    assert divergence is None
    assert [step.answered for step in steps] == [True, True, False]


def test_a_skipped_operation_says_why(play: Play) -> None:
    program = make(update(1), {"op": "close", "snapshot": "s"}, **SMALL)
    steps, _ = play(program, "reference")
    assert steps[1].skipped == "there is no snapshot s"
    assert not steps[1].facts


def test_looking_changes_nothing(play: Play) -> None:
    """A cache exists once it is named, and there may be 16: to ask what one holds that
    must not be made would make it."""
    names = [f"c{number}" for number in range(17)]
    ops = [update(1, cache=name) for name in [*names, names[-1]]]
    steps, _ = play(make(*ops), "reference")
    assert [step.skipped for step in steps[-2:]] == ["there are 16 caches already"] * 2


def test_long_programs_are_left_out_in_the_middle(play: Play) -> None:
    ops = [update(1), {"op": "size"}] * 200
    bounds = Bounds(first=2, last=5, squares=30)
    program = make(*ops, trim(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:answers_in_numpy", bounds=bounds)
    assert divergence is not None and divergence.step == 400
    assert [step.number for step in steps] == [0, 1, 396, 397, 398, 399, 400]
    assert [step.is_drawn for step in steps][-1]
    assert not steps[0].is_drawn and not steps[0].parts
    assert len(steps[-1].parts[0].held) == 32
    assert steps[-1].parts[0].held_left_out == 167


@torch
def test_the_failure_is_shown_that_the_file_names(play: Play) -> None:
    """Watching every array shows another failure of this backend first."""
    clone = {"op": "clone", "into": "b"}
    program = make(clone, update(1), update(1), update(1, cache="b"), update(1))

    def find(wanted: str | None) -> str:
        _, divergence = play(program, f"{FAULTS}:clone_shares", wanted=wanted)
        assert isinstance(divergence, Divergence)
        return divergence.get_signature(program)

    assert find(None) == "layer-kv-update-alias"
    assert find("layer-kv-update-contents") == "layer-kv-update-contents"
    assert find("no such signature") == "layer-kv-update-alias"
