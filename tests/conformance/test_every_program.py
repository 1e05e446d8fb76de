"""Every small program on our own caches, not only those that are drawn."""

from pathlib import Path

import pytest

from lockstep.harness.cli.pytest_plugin import describe
from lockstep.harness.jobs.explore import Exploration, explore_in
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers.pool import Pool
from tests.harness.building import list_pairs

DEPTH = 3

LATE = ("paged-state",)
"""Kinds of which longer programs read contents: a second step reads the first state."""


@pytest.mark.parametrize(
    ("backend", "kind"), [(backend, kind) for backend, _, kind in list_pairs()]
)
def test_every_program_of_up_to_three_operations_agrees(
    backend: str, kind: str, tmp_path: Path, lockstep_pool: Pool
) -> None:
    outcome = Outcome(Settings((backend,), (kind,), failures=tmp_path))
    exploration = explore_in(lockstep_pool, Exploration("small", DEPTH, outcome))
    if outcome.unavailable:
        pytest.skip(f"{backend}: {outcome.unavailable[backend]}")
    (survey,) = exploration.surveys
    unproven = ["contents: never compared"] if kind in LATE else []
    assert survey.pair.list_unproven() == unproven, describe(outcome)
    assert outcome.get_exit_status() == (2 if unproven else 0), describe(outcome)
    assert not outcome.failures
    assert survey.is_complete
    assert len(survey.domain.moves) >= 15
    assert survey.covered > 300
