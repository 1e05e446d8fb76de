"""The last line of a check says what was asked and did not run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.harness.commands import CORRECT, HERE, Run

ALL = 400
"""Programs that reach every cell of the correct cache."""


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
    for form in ("markdown", "github"):
        ended = run("report", tmp_path, "--format", form)
        assert ended.status == 0
    shown = run("report", tmp_path, "--format", "markdown").out
    assert shown.startswith("## Lockstep: no failure, but incomplete\n")


def test_programs_that_were_not_run(run: Run, tmp_path: Path) -> None:
    size = ("--programs", 9000, "--time", 0.2, "--jobs", 1)
    for more, wanted in (((), 0), (("--require-complete",), 2)):
        status, words = check(run, tmp_path, *size, *more)
        assert status == wanted
        assert re.search(r"; ran [\d,]+ of 9,000 programs", words)


def test_a_divergence_comes_before_what_is_missing(run: Run, tmp_path: Path) -> None:
    more = ("--programs", 3, "--require-complete", "--failures", tmp_path)
    assert run("check", "--backend", f"{HERE}:shows_nan", *more).status == 1
