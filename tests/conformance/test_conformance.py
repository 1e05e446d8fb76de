"""Every backend and kind beside the reference: what `pytest -n auto` is for."""

from collections.abc import Callable

from lockstep.harness.cli.pytest_plugin import Case
from lockstep.harness.jobs.outcome import Outcome


def test_agrees_with_the_reference(
    lockstep_case: Case, lockstep_check: Callable[[Case], Outcome]
) -> None:
    """Generated programs, no divergence but those that the ledger knows."""
    (pair,) = lockstep_check(lockstep_case).pairs
    assert pair.programs == pair.wanted > 0
    assert pair.steps > pair.programs
