"""What breaks a rule of usage is refused, and the cache is as it was before."""

from __future__ import annotations

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import trace
from lockstep.harness.workers.registry import load

PROGRAMS, LEAST = 40, 20
KINDS = [(rules.name, kind) for rules in CONTRACTS.values() for kind in rules.kinds]


@pytest.mark.parametrize(("contract", "kind"), KINDS)
@pytest.mark.parametrize("name", ["torch-cpu", "mlx-cpu"])
def test_misuse_is_refused(name: str, contract: str, kind: str) -> None:
    backend = load(name)
    declared = backend.contracts[contract][kind]
    drawer = Drawer(contract, kind, declared, backend.dtypes, misuse=1)
    source, refused = RandomSource(5), 0
    for _ in range(PROGRAMS):
        program = drawer.draw(source)
        result = run(program, backend, every=True)
        assert result.divergence is None, program.to_json()
        assert result.skipped == 0
        refused += sum(answer == {"error": "usage"} for answer in trace(program))
    assert refused > LEAST
