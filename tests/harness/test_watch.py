"""The command that replays programs while their backend is mended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.harness.jobs.watch import build, take_stamps, wait_for_change
from tests.harness.building import make, trim, update
from tests.harness.commands import START, Run

SOURCE = """
from tests.harness.misbehaving import Cache, declare


class Mine(Cache):
    def trim(self, count):
        return super().trim(count){wrong}


def make():
    return declare(Mine, {{}})
"""
BROKEN, MENDED = SOURCE.format(wrong=" + 1"), SOURCE.format(wrong="")
MISSPELT = MENDED.replace("count):", "count:")
PROGRAM = make(update(2), trim(1)).to_json()
SECONDS = 600.0


class Watching:
    """The command while it runs; its output goes into a file."""

    def __init__(self, process: subprocess.Popen[str], out: Path) -> None:
        self.process, self.out, self.read = process, out, 0

    def wait_for(self, words: str) -> str:
        """What was printed since the last time, up to a round that ends."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            new = self.out.read_text()[self.read :]
            if words in new and new.endswith("Ctrl-C ends.\n"):
                self.read += len(new)
                return new
            assert self.process.poll() is None, new
            time.sleep(0.05)
        raise AssertionError(f"{words!r} is not in {new!r}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{tmp_path}")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    (tmp_path / "p.json").write_text(json.dumps(PROGRAM))
    (tmp_path / "mine.py").write_text(BROKEN)
    return tmp_path


@pytest.fixture
def watching(folder: Path) -> Iterator[Watching]:
    out = folder / "out.txt"
    with out.open("w") as file:
        command = [sys.executable, "-c", START, "watch", "p.json", "--backend"]
        process = subprocess.Popen([*command, "mine:make"], stdout=file, text=True)
    try:
        yield Watching(process, out)
    finally:
        process.kill()
        process.wait()


def test_a_backend_is_mended_while_the_watch_runs(
    watching: Watching, folder: Path
) -> None:
    source = folder / "mine.py"
    first = watching.wait_for("FAILED mine:make p.json: step 1 (trim)")
    assert "trim 1 token" in first  # the picture
    source.write_text(MENDED)
    second = watching.wait_for("AGREES mine:make p.json: agrees in all 2 steps")
    assert second.startswith("Changed: mine.py\n")
    source.write_text(MISSPELT)
    watching.wait_for("SyntaxError")
    source.write_text(BROKEN)
    watching.wait_for("FAILED mine:make p.json")
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(SECONDS) == 130
    assert watching.out.read_text().endswith("Replayed 4 times; last: 1 FAILED.\n")
    assert "\x1b" not in watching.out.read_text()


def test_nothing_to_watch(run: Run) -> None:
    Path("p.json").write_text(json.dumps(PROGRAM))
    none = run("watch", "p.json")
    assert (none.status, none.out) == (2, "")
    assert none.err.startswith("lockstep: p.json: names no registered backend; give one")
    lost = run("watch", "q.json", "--backend", "reference")
    assert lost.status == 2
    assert lost.err == "lockstep: q.json: there is no such file\n"


def test_changes_are_waited_for_until_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    before = take_stamps([tmp_path])
    (tmp_path / "__pycache__" / "a.pyc").write_text("1")
    assert take_stamps([tmp_path]) == before
    (tmp_path / "a.c").write_text("22")
    (tmp_path / "b.c").write_text("3")
    changed = wait_for_change([tmp_path], before)
    assert changed == [tmp_path / "a.c", tmp_path / "b.c"]
    before = take_stamps([tmp_path])
    (tmp_path / "b.c").unlink()
    assert wait_for_change([tmp_path], before) == [tmp_path / "b.c"]


def test_a_build_that_fails_is_told(tmp_path: Path) -> None:
    assert build("true") is None
    why = build("echo 'no rule'; exit 3")
    assert why == "exit status 3\nno rule"


def test_a_build_may_leave_a_process_that_keeps_its_output_open() -> None:
    began = time.monotonic()
    assert build("sleep 20 & exit 0") is None
    reason = build("sleep 20 & printf '%9999s' end; exit 3")
    assert reason is not None and reason.startswith("exit status 3\n")
    assert len(reason) < 4100 and reason.endswith("end")
    assert time.monotonic() - began < 15
