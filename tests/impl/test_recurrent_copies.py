"""States that are copied from slots to slots that are written by the same pass."""

from __future__ import annotations

from importlib import import_module

import pytest

from lockstep.harness.backends import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.slices import get_seed

OPS = [
    {"op": "forward", "positions": [0, 0, 0], "sequences": [1, 0, 3]},
    {"op": "copy_prefix", "source": 0, "target": 1, "length": 0},
    {"op": "copy_prefix", "source": 3, "target": 2, "length": 0},
    {"op": "forward", "positions": [0, 0], "sequences": [0, 2]},
]


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("layers", [1, 2])
def test_overlapping_slots_are_copied_as_they_were(framework: str, layers: int) -> None:
    reason = f"{framework} is not installed"
    backend = pytest.importorskip(f"lockstep.impl.{framework}.backend", reason=reason)
    config = {"kind": "recurrent", "sequences": 4, "batch": 4, "layers": layers}
    document = {"format": "lockstep/1", "contract": "unified", "config": config}
    own: Backend = backend.cpu()
    result = run(parse_program({**document, "ops": OPS, "meta": {}}, "here"), own)
    assert (result.steps, result.divergence) == (4, None)


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_a_mistake_there_is_found_within_500_programs(framework: str) -> None:
    pytest.importorskip(f"lockstep.impl.{framework}.backend")
    faults = import_module(f"lockstep.impl.faults.{framework}")
    backend: Backend = faults.states_copied_in_place()
    declared = backend.contracts["unified"]["recurrent"]
    draw = Drawer("unified", "recurrent", declared, backend.dtypes).draw
    found: list[str] = []

    def consume(program: Program) -> None:
        if not found and (divergence := run(program, backend).divergence):
            found.append(divergence.get_signature(program))

    for number in range(4):
        seed = get_seed(0, "unified", "recurrent", number)
        GENERATORS["hypothesis"](125, seed, draw, consume)
    assert found == ["unified-recurrent-forward-contents"]
