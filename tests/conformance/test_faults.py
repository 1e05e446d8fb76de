"""The planted faults: each is found, shrunk, saved, replayed as FAILED, and as FIXED on
the same backend without the mistake."""

import time
from pathlib import Path

import pytest

from harness.campaign import Campaign
from harness.cli import judge
from harness.outcome import Settings
from harness.pool import Pool
from harness.program import load_programs
from impl.faults import FAULTS, Fault

PROGRAMS, SECONDS, EXCESS = 500, 20.0, 1


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_fault_is_found_shrunk_saved_and_replayed(
    fault: Fault, framework: str, tmp_path: Path, lockstep_pool: Pool
) -> None:
    name = fault.id.replace("-", "_")
    backend = f"impl.faults.{framework}:{name}"
    settings = Settings((backend,), programs=PROGRAMS, failures=tmp_path, shard=PROGRAMS)
    started = time.monotonic()
    outcome = Campaign(settings, ()).run_in(lockstep_pool)
    seconds = time.monotonic() - started

    assert outcome.get_exit_status() == 1
    assert seconds < SECONDS
    shortest = min(outcome.failures, key=lambda failure: len(failure.program.ops))
    assert len(shortest.program.ops) <= fault.shortest + EXCESS

    for failure in outcome.failures:
        assert failure.path.parent == tmp_path / failure.signature
        (saved,) = load_programs(failure.path)
        task = {"do": "run", "program": saved.to_json()}
        event = lockstep_pool.call({**task, "backend": backend})
        assert judge(event, saved)[0] == "FAILED"
        event = lockstep_pool.call({**task, "backend": f"{framework}-cpu"})
        assert judge(event, saved)[0] == "FIXED"
