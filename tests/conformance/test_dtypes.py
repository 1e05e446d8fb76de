"""Every kind of the unified and the prefix family in every dtype: no tag is misread, and
what a tolerance allows is not used up."""

from __future__ import annotations

import pytest

from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.contracts.unified import UNIFIED
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.workers.registry import load

PROGRAMS = 12


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("contract", "kind"),
    [(rules.name, kind) for rules in (UNIFIED, PREFIX) for kind in rules.kinds],
)
@pytest.mark.parametrize("name", ["torch-cpu", "mlx-cpu"])
def test_no_tag_is_misread(name: str, contract: str, kind: str, dtype: str) -> None:
    backend = load(name)
    drawer = Drawer(contract, kind, backend.contracts[contract][kind], (dtype,))
    source = RandomSource(7)
    margin, steps = 0.0, 0
    for _ in range(PROGRAMS):
        program = drawer.draw(source)
        result = run(program, backend)
        assert result.divergence is None, program.to_json()
        margin, steps = max(margin, result.margin), steps + result.steps
    assert steps > 10 * PROGRAMS
    assert 0 < margin <= 1 or kind == "encoder"
