"""What breaks a rule of usage is refused, and the cache is as it was before."""

from pathlib import Path

import pytest

from harness.campaign import Campaign
from harness.contracts.prefix import PREFIX
from harness.contracts.unified import UNIFIED
from harness.outcome import Settings
from harness.pool import Pool
from harness.pytest_plugin import describe

PROGRAMS = 60


@pytest.mark.parametrize("kind", [*UNIFIED.kinds, *PREFIX.kinds])
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx-cpu"])
def test_misuse_is_refused(
    backend: str, kind: str, tmp_path: Path, lockstep_pool: Pool
) -> None:
    settings = Settings(
        (backend,), (kind,), programs=PROGRAMS, misuse=True, failures=tmp_path
    )
    outcome = Campaign(settings, ()).run_in(lockstep_pool)
    assert outcome.get_exit_status() == 0, describe(outcome)
    (pair,) = outcome.pairs
    assert (pair.programs, pair.skipped) == (PROGRAMS, 0)
