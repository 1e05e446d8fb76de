"""A call that breaks a rule of usage is refused, in every dtype, and changes nothing; no
tag is misread, and what a tolerance allows is not used up."""

from __future__ import annotations

from itertools import islice

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import trace
from lockstep.harness.workers.registry import load
from tests.harness.building import draw, list_pairs

PROGRAMS, LEAST = 40, 20


@pytest.mark.parametrize(("name", "contract", "kind"), [*list_pairs()])
def test_misuse_is_refused(name: str, contract: str, kind: str) -> None:
    backend = load(name)
    declared = backend.contracts[contract][kind]
    refused = steps = 0
    for dtype in ("float32", "float16", "bfloat16"):
        margin = 0.0
        programs = draw(contract, kind, declared, dtypes=(dtype,), misuse=1)
        for program in islice(programs, PROGRAMS // 3):
            result = run(program, backend, every=True)
            assert result.divergence is None, program.to_json()
            # What a backend chooses may make an operation illegal that was drawn.
            chosen = program.rules.leaves_choices
            assert result.skipped <= (result.steps // 4 if chosen else 0)
            refused += sum(answer == {"error": "usage"} for answer in trace(program))
            margin, steps = max([margin, *result.margins.values()]), steps + result.steps
        plain = contract == "layer" or kind in ("encoder", "batch-state", "paged-state")
        assert plain or 0 < margin <= 1
    assert refused > LEAST
    assert steps > 10 * PROGRAMS
