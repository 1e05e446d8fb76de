"""`lockstep explore`: what it covers, finds, keeps, prints and exits with."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness.commands import CORRECT, HERE, Run

BACKEND = ("--backend", CORRECT)


def test_what_is_covered_is_said(run: Run) -> None:
    """The small domain has five moves of these: update 1 and 3, update 1 in cache b,
    trim, state. All can be made at any time: 5 + 25 + 125 programs."""
    ended = run("explore", *BACKEND, "--depth", 3)
    assert ended.status == 0, ended.words
    said = "every program of up to 3 operations over this domain: 155, none diverges"
    assert said in ended.words
    assert max(map(len, ended.out.splitlines())) <= 80
    outcome = json.loads(run("explore", *BACKEND, "--depth", 3, "--json").out)
    (pair,) = outcome["pairs"]
    assert (pair["covered"], pair["run"], pair["diverging"]) == (155, 125, {})
    names = [op["op"] for op in pair["operations"]]
    assert names == ["update", "update", "trim", "state", "update"]
    assert (outcome["complete"], outcome["exit_status"]) == (True, 0)


def test_a_divergence_is_found_shrunk_saved_and_exit_status_1(run: Run) -> None:
    wrong = ("--backend", f"{HERE}:wrong_and_slow")
    ended = run("explore", *wrong, "--depth", 2, "--size", "tiny")
    assert ended.status == 1, ended.words
    assert "every program of up to 2 operations over this domain" in ended.words
    assert "diverge (" in ended.words
    (saved,) = Path("failures").glob("layer-kv-*/*.json")
    ended = run("replay", saved, *wrong)
    assert (ended.status, "FAILED" in ended.out) == (1, True)


def test_a_crash_is_found_and_exit_status_1(run_workers: Run) -> None:
    dies = ("--backend", f"{HERE}:dies", "--depth", 3, "--size", "tiny")
    ended = run_workers("explore", *dies)
    assert ended.status == 1, ended.words
    assert "layer-kv-update-crash" in ended.words
    assert "0 diverge, 2 crash or hang" in ended.words
    assert "not every program" in ended.words


def test_time_is_up(run: Run) -> None:
    ended = run("explore", *BACKEND, "--depth", 8, "--time", 2)
    assert ended.status == 0, ended.words
    assert "not every program of up to 8 operations" in ended.words
    assert "stopped before the end" in ended.words
