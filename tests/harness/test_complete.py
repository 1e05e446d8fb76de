"""The last line of a check says what was asked and did not run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from lockstep.harness.backends.backend import Backend, Duty
from lockstep.harness.jobs.check import check as run_check
from lockstep.harness.jobs.outcome import OFTEN, Outcome, Pair
from lockstep.harness.jobs.settings import PROFILES, Settings
from tests.harness.commands import CORRECT, HERE, Run
from tests.harness.misbehaving import correct

ALL = 400
"""Programs that reach every cell of the correct cache."""

KIND = correct().contracts["layer"]["kv"]


def check(run: Run, folder: Path, *more: object) -> tuple[int, str]:
    """The exit status, and the last line."""
    ended = run("check", "--backend", CORRECT, "--failures", folder, *more)
    return ended.status, ended.words.partition("✓")[2] or ended.words


def test_a_check_that_is_complete(run: Run, tmp_path: Path) -> None:
    for more in ((), ("--require-complete",)):
        status, words = check(run, tmp_path, "--programs", ALL, *more)
        assert status == 0
        assert "all agree: 400 programs" in words
        assert words.endswith("seed 0")


def test_cells_that_no_program_has_reached(run: Run, tmp_path: Path) -> None:
    status, words = check(run, tmp_path, "--programs", 3)
    assert status == 0
    assert re.search(r"all agree: 3 programs.*; \d+ of \d+ cells never reached$", words)
    status, words = check(run, tmp_path, "--programs", 3, "--require-complete")
    assert status == 2
    assert re.search(r"no failure, but incomplete: 3 .*cells never reached$", words)
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["require_complete"] is True
    ended = run("report", tmp_path, "--format", "markdown")
    assert ended.status == 0
    assert ended.out.startswith("## Lockstep: no failure, but incomplete\n")


def dutiful() -> Backend:
    """The correct cache, whose callers must not read before the first update."""
    duty = Duty({"op": "state", "states": ["unwritten"]}, "state before the first update")
    return replace(correct(), contracts={"layer": {"kv": replace(KIND, duties=(duty,))}})


def test_cells_that_a_duty_excludes_are_not_wanted(run: Run, tmp_path: Path) -> None:
    backend, size = "tests.harness.test_complete:dutiful", ("--programs", ALL)
    more = ("--failures", tmp_path, "--require-complete")
    ended = run("check", "--backend", backend, *size, *more)
    assert ended.status == 0 and "never reached" not in ended.words
    (pair,) = json.loads((tmp_path / "outcome.json").read_text())["pairs"]
    assert pair["cells"] == {"reachable": 16, "empty": {}, "excluded": 1}
    ended = run("check", "--backend", backend, "--programs", 1, *more)
    assert ended.status == 2


def test_programs_that_were_not_run(run: Run, tmp_path: Path) -> None:
    size = ("--programs", 9000, "--time", 0.2, "--jobs", 1)
    for more, wanted in (((), 0), (("--require-complete",), 2)):
        status, words = check(run, tmp_path, *size, *more)
        assert status == wanted
        assert re.search(r"; ran [\d,]+ of 9,000 programs", words)
    status, words = check(run, tmp_path, "--profile", "ci", *size[2:])
    assert re.search(rf"; ran [\d,]+ of {PROFILES['ci'].programs} programs", words)


def run_slices(folder: Path, **more: int) -> Pair:
    """Programs in small slices on the correct cache."""
    settings = Settings((CORRECT,), ("kv",), failures=folder, slice=10)
    (pair,) = run_check(Outcome(replace(settings, **more)), (), lambda _: None).pairs
    return pair


def test_a_pair_ends_once_it_has_met_each_cell_often(tmp_path: Path) -> None:
    """Behind the first slice with which that holds, with any number of workers."""
    size = {"programs": 1000, "least": 10}
    one, two = (run_slices(tmp_path, jobs=jobs, **size) for jobs in (1, 2))
    assert (one.programs, one.digests) == (two.programs, two.digests)
    assert 10 < one.programs == one.wanted < 1000
    assert min(one.coverage.values()) >= OFTEN
    before = run_slices(tmp_path, programs=one.programs - 10)
    assert min(before.coverage.values()) < OFTEN


def test_a_pair_runs_all_programs_if_some_cell_stays_rare(tmp_path: Path) -> None:
    assert run_slices(tmp_path, programs=15, least=10).programs == 15


def test_the_profile_ci_may_end_early(run: Run, tmp_path: Path) -> None:
    status, words = check(run, tmp_path, "--profile", "ci")
    ran = re.search(r"all agree: (\d+) programs", words)
    assert status == 0 and ran is not None
    least = PROFILES["ci"].least
    assert least is not None and least <= int(ran[1]) < PROFILES["ci"].programs


def test_a_divergence_comes_before_what_is_missing(run: Run, tmp_path: Path) -> None:
    more = ("--programs", 3, "--require-complete", "--failures", tmp_path)
    assert run("check", "--backend", f"{HERE}:shows_nan", *more).status == 1
