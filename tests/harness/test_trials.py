"""A few of the scripted trials of `ci/trials.py`, which runs many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.trials import ACTS, EVENTS, HARMLESS, IN_A_THREAD, PLACES, attempt, draw
from tests.harness.commands import Run

NUMBERS = (1, 2, 3, 4, 5, 6, 9, 11)
"""Trials without a driver that dies in a step: shortening its program, which starts a
driver each time, takes most of a minute."""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
def test_trials_end_as_they_must() -> None:
    """Several at a time, since most of their time is waiting."""
    trials = [draw(1, number) for number in NUMBERS]
    with ThreadPoolExecutor(4) as pool:
        for trial, ended in zip(trials, pool.map(attempt, trials), strict=True):
            assert not ended.problems, trial.format() + ended.out + ended.err


def test_the_backend_of_the_trials_agrees_where_it_makes_no_trouble(run: Run) -> None:
    ended = run("check", "--backend", "tests.harness.trouble:make", "--programs", 40)
    assert (ended.status, ended.err) == (0, "")


def test_everything_is_drawn() -> None:
    trials = [draw(0, number) for number in range(500)]
    assert {trial.place for trial in trials} == {*PLACES}
    assert {trial.act for trial in trials} == {*ACTS}
    assert {trial.event for trial in trials} == {*EVENTS}
    assert {*HARMLESS, *IN_A_THREAD} <= {*ACTS}
    assert 150 < sum(trial.is_driver for trial in trials) < 250
