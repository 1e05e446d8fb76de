"""Our backends agree with every recorded program of a real unified cache. That the
reference says what was recorded is shown in tests/reference/test_traces.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import load_programs
from lockstep.harness.workers.registry import load

TRACES = Path(__file__).parents[1] / "data" / "traces" / "unified.jsonl.gz"
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", ["torch-cpu", "mlx-cpu"])
def test_agrees_with_the_recording(name: str, share: int) -> None:
    backend = load(name)
    programs = load_programs(TRACES)
    assert len(programs) == 200
    steps = 0
    for number, program in enumerate(programs[share::SHARES]):
        result = run(program, backend)
        assert result.divergence is None, f"{share + number * SHARES}: {program.config}"
        steps += result.steps
    assert steps > 1500
