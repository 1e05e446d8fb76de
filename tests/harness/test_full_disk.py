"""A disk that is full, or files that may not grow: what was found counts, and its program
is somewhere."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.folder import LocalFolder
from lockstep.harness.programs.program import load_programs
from lockstep.harness.reports import outcome_file
from tests.harness.building import make, update
from tests.harness.commands import CORRECT, HERE, Run
from tests.harness.test_streams import run_in_shell

NAN, DIES = f"{HERE}:shows_nan", f"{HERE}:dies"


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["shows_nan", "exits_politely"])
def test_a_program_without_a_file_stands_in_the_outcome(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(LocalFolder, "replace", refuse)
    backend = f"{HERE}:{name}"
    ended = run("check", "--backend", backend, "--programs", 5)
    assert (ended.status, ended.err) == (1, "")
    assert "1 failure" in ended.out
    assert "could not be written (No space left on device); outcome.json" in ended.words
    (pair,) = json.loads((tmp_path / "failures" / "outcome.json").read_text())["pairs"]
    (failure,) = pair["failures"]
    assert failure["unsaved"] == "No space left on device"
    (tmp_path / "kept.json").write_text(json.dumps(failure["program"]))
    assert run("replay", "kept.json", "--backend", backend).status == 1


def test_if_there_is_no_outcome_either_it_is_a_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "replace", refuse)
    monkeypatch.setattr(outcome_file, "write_whole", refuse)
    ended = run("check", "--backend", NAN, "--programs", 5)
    assert ended.status == 1
    why, program = ended.err.splitlines()
    path = "failures/outcome.json"
    assert why == f"lockstep: {path}: cannot be written: No space left on device"
    (tmp_path / "kept.json").write_text(program)
    assert load_programs(tmp_path / "kept.json")[0].meta["backend"] == NAN
    assert run("replay", "kept.json", "--backend", NAN).status == 1


LIMITED = [
    # KiB of a file, operations, words
    (
        0,
        3,
        "lockstep: a worker cannot be started: File too large; its write-ahead record",
    ),
    (32, 3, "the write-ahead record cannot be written (File too large); its program was"),
    (100, 3000, "the write-ahead record cannot be written (File too large); its program"),
]


@pytest.mark.parametrize(("limit", "operations", "words"), LIMITED)
def test_a_record_that_cannot_grow(
    tmp_path: Path, limit: int, operations: int, words: str
) -> None:
    """Its program does not run; a page that is not on the disk would end the worker."""
    program = make(*[update(1)] * operations).to_json()
    (tmp_path / "p.json").write_text(json.dumps(program))
    replay = ("replay", tmp_path / "p.json", "--backend", CORRECT)
    more = {"PYTHONDONTWRITEBYTECODE": "1"}  # files of bytecode would be cut off, too
    done = run_in_shell(tmp_path, "", *replay, before=f"ulimit -f {limit}", **more)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert words in " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system with next to no room."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("backend", [NAN, DIES])
def test_a_disk_that_is_full(tmp_path: Path, tiny: Path, backend: str) -> None:
    """There is room for the record of one worker, and for little else."""
    (tiny / "other").write_bytes(bytes(12 << 10))
    size = ("--programs", 20, "--jobs", 1, "--failures", tiny / "f")
    done = run_in_shell(tmp_path, "", "check", "--backend", backend, *size)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("{")]
    files = [path for path in (tiny / "f").rglob("*.json") if path.stat().st_size]
    assert lines or files
    for line in lines:
        (tmp_path / "kept.json").write_text(line)
        files.append(tmp_path / "kept.json")
    assert any("layer" in path.read_text() for path in files)
