"""The command in a folder of its own, for the tests of the harness."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.harness.workers.pool import Pool
from tests.harness.commands import ROOT, Run, invoke, run_here


@pytest.fixture
def run_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`lockstep` in this process and in a folder of the test, its workers in others."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return invoke


@pytest.fixture
def run(run_workers: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same without processes, which take a second to come up."""
    monkeypatch.setattr(Pool, "run", run_here)
    return run_workers
