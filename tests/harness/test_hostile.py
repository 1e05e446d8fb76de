"""Files that were made to harm, or came to harm: each gives one line and status 2.

Nothing is written, nothing that is printed acts on a terminal, and neither time nor
memory goes without bound.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from tests.harness.hostile.drivers import DRIVERS
from tests.harness.hostile.files import FILES, FOLDERS
from tests.harness.hostile.makers import ESCAPES, GOOD, TEXT, Make, as_file
from tests.harness.hostile.outcomes import OUTCOMES, with_failure
from tests.harness.hostile.programs import PROGRAMS
from tests.harness.hostile.sets import EMPTY, SETS, as_set
from tests.harness.hostile.zips import ZIPS

ROOT = Path(__file__).parents[2]
CORRECT = "tests.harness.misbehaving:correct"
SECONDS = 30.0


def list_cases() -> list[Any]:
    """The command, what it is given, and words of the line that it must print."""
    families = {
        "program": (PROGRAMS, ("trace",)),
        "zip": (ZIPS, ("replay", "--backend", CORRECT)),
        "file": (FILES, ("replay", "--backend", CORRECT)),
        "folder": (FOLDERS, ("replay", "--backend", CORRECT)),
        "outcome": (OUTCOMES, ("report", "--format", "markdown")),
        "set": (SETS, ("vectors", "verify")),
        "snippet of": (FILES, ("snippet", "--backend", CORRECT)),
    }
    listed = []
    for family, (cases, command) in families.items():
        for name, (make, words) in cases.items():
            listed.append(pytest.param(command, make, words, id=f"{family}: {name}"))
    return listed


def list_files(folder: Path) -> list[tuple[str, int]]:
    """All below a folder, with sizes; links are not followed."""
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.lstat().st_size) for path in paths]


def check_line(err: str, words: str) -> None:
    """One line that says what is wrong, in letters that do nothing else."""
    assert words in err
    assert err.startswith("lockstep: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 7000  # a path may have 4,096
    assert "Traceback" not in err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, beside that of the hostile file."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "here").mkdir()
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("name", DRIVERS)
def test_a_hostile_driver_gives_one_line(here: Path, name: str) -> None:
    make, words = DRIVERS[name]
    path = make(here / "files")
    program = as_file(TEXT, "good.json")(here)
    before = list_files(here)
    arguments = ["snippet", str(program), "--backend", f"exec:{path}"]
    began = time.monotonic()
    ended = CliRunner().invoke(main, arguments)
    assert time.monotonic() - began < SECONDS
    assert (ended.exit_code, ended.stdout) == (2, "")
    check_line(ended.stderr, words)
    assert list_files(here) == before


@pytest.mark.parametrize(("command", "make", "words"), list_cases())
def test_a_hostile_file_gives_one_line(
    here: Path, command: tuple[str, ...], make: Make, words: str
) -> None:
    path = make(here / "files")
    before = list_files(here)
    began = time.monotonic()
    ended = CliRunner().invoke(main, [*command, str(path)])
    assert time.monotonic() - began < SECONDS
    assert ended.exit_code == 2
    assert ended.stdout == ""
    check_line(ended.stderr, words)
    assert list_files(here) == before


@pytest.mark.parametrize("program", [{}, {**GOOD, "config": {ESCAPES: 1}}])
def test_a_broken_failure_in_an_outcome_is_said_beside_the_report(
    here: Path, program: Any
) -> None:
    path = with_failure(program=program)(here / "files")
    ended = CliRunner().invoke(main, ["report", "--format", "markdown", str(path)])
    assert ended.exit_code == 2
    check_line(ended.stderr, "outcome.json")
    assert ended.stdout.replace("\n", "").isprintable()


def test_what_a_manifest_names_outside_is_not_replaced(here: Path) -> None:
    """Writing a set removes the files of a former one, and no others."""
    (here / "precious.json").write_text(TEXT)
    path = as_set(files={"../precious.json": EMPTY, "/etc/passwd": EMPTY})(here / "files")
    before = list_files(here)
    ended = CliRunner().invoke(main, ["vectors", "--kind", "kv", "-o", str(path)])
    assert (ended.exit_code, ended.stdout) == (2, "")
    check_line(ended.stderr, "choose another folder")
    assert list_files(here) == before


def test_there_are_enough_of_them() -> None:
    cases = [*PROGRAMS, *ZIPS, *OUTCOMES, *SETS, *FILES, *FOLDERS, *DRIVERS]
    assert len(cases) > 170


# --- processes --------------------------------------------------------------------------

MEMORY = 1 << 30
"""Bytes of address space that a command gets."""


def run(folder: Path, path: object) -> subprocess.CompletedProcess[str]:
    """`lockstep replay` in a process of its own, with bounded memory."""
    command = [sys.executable, "-m", "lockstep.harness.cli.main", "replay", str(path)]
    return subprocess.run(
        [*command, "--backend", CORRECT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (PROGRAMS, "very many empty lists"),
        (PROGRAMS, "very many names, one twice"),
        (PROGRAMS, "a bomb"),
        (PROGRAMS, "millions of empty lines"),
        (ZIPS, "very many members"),
        (ZIPS, "a bomb of many members"),
        (FILES, "a file of 10 GiB"),
        (FILES, "a device without end"),
        (FILES, "a pipe"),
        (FILES, "a name that is no text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_memory_is_bounded(
    tmp_path: Path, family: Mapping[str, tuple[Make, str]], name: str
) -> None:
    make, words = family[name]
    (tmp_path / "files").mkdir()
    path = make(tmp_path / "files")
    before = list_files(tmp_path)
    ended = run(tmp_path, path)
    assert (ended.returncode, ended.stdout) == (2, "")
    check_line(ended.stderr, words)
    assert list_files(tmp_path) == before


META: Mapping[str, Any] = {
    "backend": ESCAPES,
    "signature": ESCAPES,
    "versions": {ESCAPES: ESCAPES, "numpy": [1], "python": "2\n3"},
    "device": ESCAPES,
    "platform": {"a": 1},
    "step": 10**400,
    "what": [ESCAPES],
    "replay": "lockstep; rm -r .",
}


def test_what_a_program_says_of_itself_is_not_trusted(tmp_path: Path) -> None:
    """It agrees, whatever stands in its meta; what is printed of that does no harm."""
    (tmp_path / f"{ESCAPES}.json").write_text(json.dumps({**GOOD, "meta": META}))
    ended = run(tmp_path, ".")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("FIXED")
    assert ended.stdout[:-1].isprintable()
    assert "python 2 3" in ended.stdout
