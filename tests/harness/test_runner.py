"""Programs that are shrunk where a backend fails now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.execution.executor import Result
from lockstep.harness.execution.record import Record
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers.runner import Runner
from tests.harness.building import make, update
from tests.harness.misbehaving import correct

OPS = 12


@pytest.mark.parametrize("failing", range(2, 40))
def test_a_step_that_is_reported_is_a_step_of_the_shrunk_program(
    failing: int, tmp_path: Path
) -> None:
    """The backend fails in so many runs, at the last step, and in no later run."""
    program, runs = make(*[update(1)] * OPS), 0
    record = Record(tmp_path / "record.json")

    class Sometimes(Runner):
        def run(self, program: Program, *given: Any, **more: Any) -> Result:
            nonlocal runs
            runs += 1
            last = len(program.ops) - 1
            if runs > failing or last < 0:
                return Result(steps=1)
            return Result(divergence=Divergence("contents", last, "update", "m"))

    found = Divergence("contents", OPS - 1, "update", "m")
    runner = Sometimes(record, lambda event: None)
    small = runner.shrink(program, found, correct(), 5.0)
    record.close()
    assert 0 <= small.divergence.step < len(small.program.ops)
    assert failing < 4 or len(small.program.ops) < OPS
