"""Lockstep's check as tests; to be copied to tests/test_lockstep.py.

pytest takes --backend, --kind, --profile, --seed and --failures; `--junitxml` makes a report of
it for a CI service.
"""


def test_agrees_with_the_reference(lockstep_case, lockstep_check):
    """One case for each kind that the backend has; programs that it disagrees on are in
    the folder for failures."""
    lockstep_check(lockstep_case)
