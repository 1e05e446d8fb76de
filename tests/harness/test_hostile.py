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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import CORRECT, ROOT, Ended, Run
from tests.harness.hostile.files import DRIVERS, FILES, FOLDERS
from tests.harness.hostile.makers import ESCAPES, GOOD, TEXT, Make, as_file
from tests.harness.hostile.outcomes import OUTCOMES, with_failure
from tests.harness.hostile.programs import PROGRAMS
from tests.harness.hostile.sets import SETS

SECONDS = 300.0


def list_cases() -> list[Any]:
    """The command, what it is given, and words of the line that it must print."""
    families = {
        "program": (PROGRAMS, ("trace",)),
        "file": (FILES, ("replay", "--backend", CORRECT)),
        "folder": (FOLDERS, ("replay", "--backend", CORRECT)),
        "outcome": (OUTCOMES, ("report", "--format", "markdown")),
        "set": (SETS, ("vectors", "verify")),
        "driver": (DRIVERS, ("snippet", "../good.json", "--backend")),
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
def here(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, beside that of the hostile file."""
    for name in ("here", "files"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    as_file(TEXT, "good.json")(tmp_path)
    return tmp_path


def check_refused(act: Callable[[], Ended], folder: Path, words: str) -> None:
    """It ends soon, says so, and leaves all as it was."""
    before = list_files(folder)
    began = time.monotonic()
    ended = act()
    assert time.monotonic() - began < SECONDS
    assert (ended.status, ended.out) == (2, "")
    check_line(ended.err, words)
    assert list_files(folder) == before


@pytest.mark.parametrize(("command", "make", "words"), list_cases())
def test_a_hostile_file_gives_one_line(
    run: Run, here: Path, command: tuple[str, ...], make: Make, words: str
) -> None:
    path: Any = make(here / "files")
    if "../good.json" in command:
        path = f"exec:{path}"
    check_refused(lambda: run(*command, path), here, words)


@pytest.mark.parametrize("program", [{}, {**GOOD, "config": {ESCAPES: 1}}])
def test_a_broken_failure_in_an_outcome_is_said_beside_the_report(
    run: Run, here: Path, program: Any
) -> None:
    path = with_failure(program=program)(here / "files")
    ended = run("report", "--format", "markdown", path)
    assert ended.status == 2
    check_line(ended.err, "outcome.json")
    assert ended.out.replace("\n", "").isprintable()


# --- processes --------------------------------------------------------------------------

MEMORY = 1 << 30
"""Bytes of address space that a process gets."""


REPLAY = """
import json, sys
from tests.harness.commands import CORRECT, invoke
ended = [invoke("replay", path, "--backend", CORRECT) for path in sys.argv[1:]]
print(json.dumps([(one.status, one.out, one.err) for one in ended]))
"""


LARGE = [
    PROGRAMS["very many empty lists"],
    PROGRAMS["very many names, one twice"],
    PROGRAMS["a bomb"],
    PROGRAMS["millions of empty lines"],
    FILES["a file of 10 GiB"],
    FILES["a device without end"],
    FILES["a pipe"],
    FILES["a name that is no text"],
]


def test_memory_is_bounded(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(LARGE))]
    for folder in folders:
        folder.mkdir()
    paths = [make(folder) for (make, _), folder in zip(LARGE, folders, strict=True)]
    before = list_files(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, *paths],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=600,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    for (*ended, err), (_, words) in zip(json.loads(done.stdout), LARGE, strict=True):
        assert ended == [2, ""]
        check_line(err, words)
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


def test_what_a_program_says_of_itself_is_not_trusted(run: Run, tmp_path: Path) -> None:
    """It agrees, whatever stands in its meta; what is printed of that does no harm."""
    (tmp_path / f"{ESCAPES}.json").write_text(json.dumps({**GOOD, "meta": META}))
    ended = run("replay", ".", "--backend", CORRECT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("FIXED")
    assert ended.out[:-1].isprintable()
    assert "python 2 3" in ended.out
