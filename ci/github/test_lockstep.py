"""Lockstep's check as tests; to be copied to tests/test_lockstep.py.

pytest takes --backend, --kind, --profile, --seed and --failures for it.
"""

from collections.abc import Callable
from typing import Any


def test_agrees_with_the_reference(
    lockstep_case: Any, lockstep_check: Callable[[Any], Any]
) -> None:
    """One case for each kind that the backend has; programs that it disagrees on are in
    the folder for failures."""
    lockstep_check(lockstep_case)
