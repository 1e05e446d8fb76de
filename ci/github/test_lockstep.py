"""Runs Lockstep's check as tests; copy this file to tests/test_lockstep.py.

Its options are --lockstep-backend, --lockstep-kind, --lockstep-profile, --lockstep-seed,
--lockstep-require-complete and --lockstep-failures. By default, every registered backend
is checked.
"""

from collections.abc import Callable
from typing import Any


def test_agrees_with_the_reference(
    lockstep_case: Any, lockstep_check: Callable[[Any], Any]
) -> None:
    """Checks a backend and kind; writes failing programs to the folder of failures."""
    lockstep_check(lockstep_case)
