"""Standard streams that are closed, full or gone, and terminals of odd sizes: a line
where there is room for one, status 2, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from tests.harness.commands import CORRECT, HERE, ROOT

NAN = f"{HERE}:shows_nan"
START = "from lockstep.harness.__main__ import main; main()"


def run_in_shell(
    folder: Path, redirection: str, *arguments: object, before: str = ":", **more: str
) -> subprocess.CompletedProcess[str]:
    """`lockstep` in a shell, which gives it other streams than ours.

    before: a command of the shell.
    """
    words = [sys.executable, "-c", START, *map(str, arguments)]
    line = f"{before}; {' '.join(map(quote, words))} {redirection}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **more},
        capture_output=True,
        text=True,
        timeout=600,
    )


def check(folder: Path, redirection: str, backend: str = CORRECT, **more: str) -> Any:
    size = ("--kind", "kv", "--programs", 10, "--jobs", 1)
    return run_in_shell(folder, redirection, "check", "--backend", backend, *size, **more)


FULL = "lockstep: standard output cannot be written: No space left on device\n"
CLOSED = "lockstep: standard output is closed; redirect it to a file, or to /dev/null\n"


@pytest.mark.parametrize(
    ("redirection", "line"),
    [
        (">/dev/full", FULL),
        (">&-", CLOSED),
        (">&- 2>&-", ""),
        (">&- 2>&- <&-", ""),
        (">/dev/full 2>/dev/full", ""),
        ("| true", ""),
    ],
)
def test_a_report_that_cannot_be_written(
    tmp_path: Path, redirection: str, line: str
) -> None:
    done = check(tmp_path, redirection)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    has_run = ">&-" not in redirection
    assert (tmp_path / "failures" / "outcome.json").exists() == has_run


@pytest.mark.parametrize("redirection", [">/dev/full", "| true"])
def test_a_divergence_counts_more_than_its_report(
    tmp_path: Path, redirection: str
) -> None:
    done = check(tmp_path, redirection, NAN)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    outcome = json.loads((tmp_path / "failures" / "outcome.json").read_text())
    assert outcome["exit_status"] == 1


@pytest.mark.parametrize("redirection", ["<&-", "2>&-", "<&- 2>&-"])
def test_other_streams_are_not_needed(tmp_path: Path, redirection: str) -> None:
    done = check(tmp_path, redirection)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all agree" in done.stdout
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["failures", "outcome.json"]  # and nothing of Hypothesis


@pytest.mark.parametrize(
    "arguments",
    [
        ("backends", "-b", "reference"),
        ("--help",),
        ("backends", "--help"),
        ("trace", "p.json"),
    ],
)
def test_other_commands_say_so_too(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    program = {"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"}}
    (tmp_path / "p.json").write_text(json.dumps({**program, "ops": []}))
    done = run_in_shell(tmp_path, ">/dev/full", *arguments)
    assert (done.returncode, done.stderr) == (2, FULL)


@pytest.mark.parametrize("columns", ["0", "²", "1", "9" * 30])
def test_a_terminal_of_an_odd_size(tmp_path: Path, columns: str) -> None:
    done = check(tmp_path, "", NAN, COLUMNS=columns, LINES=columns)
    assert (done.returncode, done.stderr) == (1, "")
    assert len(done.stdout) < 10_000
