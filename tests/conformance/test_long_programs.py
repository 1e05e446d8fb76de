"""Programs that are too long to be drawn often: each showed a mistake that is found by
chance in one of some thousand programs only, or by hand. `meta` names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, load_programs, trace
from lockstep.harness.workers.registry import load

PROGRAMS = load_programs(Path(__file__).parents[1] / "data" / "long.jsonl")

BYTES = [256, 224, 320, 288, 224, 256]
"""What the last program stores, counted by hand: 4 tokens and captures at 1, 1 1, 1 2
and 3; less the capture at 1, which was not used for the longest time; 5 tokens and
captures at 1, 1 1, 1 2, 1 3 and 3; less the capture at 1; less 1 1 and its token; with
1 4 and the capture at 1; for it 1 2 went. A token takes 32 bytes, a capture as many."""


@pytest.mark.parametrize("backend", ["torch-cpu", "mlx-cpu"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_long_programs_agree(backend: str, program: Program) -> None:
    result = run(program, load(backend), every=True)
    assert (result.divergence, result.skipped) == (None, 0)


def test_what_goes_is_what_was_counted_by_hand() -> None:
    answers = trace(PROGRAMS[-1])
    assert [answer["bytes"] for answer in answers if "bytes" in answer] == BYTES
