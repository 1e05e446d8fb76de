"""`lockstep explore`: what it covers, finds, keeps, prints and exits with."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.harness.commands import CORRECT, HERE, Run, begin

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


def test_it_goes_on_where_it_was_stopped(run: Run, tmp_path: Path) -> None:
    """Ctrl-C in the middle, then the rest: in all, as many as there are."""
    arguments = ("explore", *BACKEND, "--depth", 5, "--failures", tmp_path)
    running = begin(*arguments)
    name = "tests.harness.misbehaving-correct-kv-small-5.journal"
    journal = tmp_path / "explored" / name
    deadline = time.monotonic() + 600
    while not journal.exists() or len(journal.read_text().splitlines()) < 4:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "stopped before the end: --resume goes on from here" in " ".join(out.split())
    before = journal.read_text().splitlines()
    ended = run(*arguments, "--resume")
    assert ended.status == 0, ended.words
    assert "over this domain: 3,905, none diverges" in ended.words
    after = journal.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == 1 + 25
    ended = run(*arguments, "--resume", "--json")
    assert json.loads(ended.out)["pairs"][0]["covered"] == 3905


def test_other_code_is_something_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of an older version of a cache say nothing about this one."""
    module = tmp_path / "edited.py"
    text = "from tests.harness.misbehaving import correct as make\n"
    module.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("explore", "--backend", "edited:make", "--depth", 2)
    assert run(*arguments).status == 0
    again = run(*arguments, "--resume")
    assert "30, none diverges" in again.words
    assert "30 of them in an earlier run" in again.words
    module.write_text(text + "# edited\n")
    edited = run(*arguments, "--resume")
    assert edited.status == 2
    assert "belongs to a run with other code" in edited.words
    assert "start anew without --resume" in edited.words


def test_time_is_up(run: Run) -> None:
    ended = run("explore", *BACKEND, "--depth", 8, "--time", 2)
    assert ended.status == 0, ended.words
    assert "not every program of up to 8 operations" in ended.words
