"""Programs as tests of other projects draw and run them, on our own backends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import lockstep
from lockstep.harness.programs.program import Program

KINDS = (
    *(("layer", "rotating"), ("unified", "swa"), ("prefix", "trie")),
    *(("batched", "batch-rotating"), ("paged", "paged-hybrid")),
)


@pytest.mark.parametrize(("contract", "kind"), KINDS)
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx-cpu"])
def test_agrees_with_the_reference(
    backend: str, contract: str, kind: str, tmp_path: Path
) -> None:
    """One kind of each contract; `test_conformance.py` runs all of them, each in a
    process of its own."""
    pytest.importorskip(backend.removesuffix("-cpu"))

    @lockstep.examples("failures", kind, backend)
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,  # the suite says the same twice
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(lockstep.programs(contract, kind, backend))
    def check(program: Program) -> None:
        lockstep.run(program, backend, tmp_path)

    check()
