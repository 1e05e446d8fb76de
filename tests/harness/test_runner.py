"""Programs that are shrunk where a backend fails now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.execution.executor import Record, Result
from lockstep.harness.programs.program import Divergence, Program, parse_program
from lockstep.harness.workers.slices import Runner
from tests.harness.misbehaving import correct

OPS = [{"op": "update", "length": 1}] * 12


@pytest.mark.parametrize("failing", range(2, 40))
def test_a_step_that_is_reported_is_a_step_of_the_shrunk_program(
    failing: int, tmp_path: Path
) -> None:
    """The backend fails in so many runs, at the last step, and in no later run."""
    document = {"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"}}
    program = parse_program({**document, "ops": OPS}, "here")
    record, runs = Record(tmp_path / "record.json"), 0

    class Sometimes(Runner):
        def run(self, program: Program, *given: Any, **more: Any) -> Result:
            nonlocal runs
            runs += 1
            last = len(program.ops) - 1
            if runs > failing or last < 0:
                return Result(steps=1)
            return Result(divergence=Divergence("contents", last, "update", "m"))

    found = Divergence("contents", len(OPS) - 1, "update", "m")
    runner = Sometimes(record, lambda event: None)
    small = runner.shrink(program, found, correct(), 5.0)
    record.close()
    assert 0 <= small.divergence.step < len(small.program.ops)
    assert failing < 4 or len(small.program.ops) < len(OPS)
