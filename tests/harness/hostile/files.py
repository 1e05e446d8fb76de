"""Files that are none, folders without any, names that do harm, and drivers that do harm,
or are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.hostile.makers import ESCAPES, TEXT, Cases, Make, as_file


def make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "p.json")
    return folder / "p.json"


def make_loop(folder: Path) -> Path:
    (folder / "p.json").symlink_to("q.json")
    (folder / "q.json").symlink_to("p.json")
    return folder / "p.json"


def make_dangling(folder: Path) -> Path:
    (folder / "p.json").symlink_to("nothing.json")
    return folder / "p.json"


def make_folder(folder: Path) -> Path:
    (folder / "p.json").mkdir()
    return folder / "p.json"


def make_folder_of_loops(folder: Path) -> Path:
    make_loop(folder)
    (folder / "all").symlink_to(folder)
    return folder


def make_folder_of_pipes(folder: Path) -> Path:
    (folder / "running").mkdir()
    make_pipe(folder)
    make_pipe(folder / "running")
    return folder


def make_sparse(name: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        with path.open("wb") as file:
            file.truncate(10 << 30)
        return path

    return make


def make_locked(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    path = as_file(TEXT)(folder)
    path.chmod(0)
    return path


FILES: Cases = {
    "nothing": (lambda folder: folder / "p.json", "there is no such file"),
    "a pipe": (make_pipe, "is a pipe or a device"),
    "a device without end": (lambda folder: Path("/dev/zero"), "is a pipe or a device"),
    "memory": (lambda folder: Path("/proc/self/mem"), "cannot be read"),
    "links in a circle": (make_loop, "cannot be read"),
    "a link to nothing": (make_dangling, "there is no such file"),
    "a file as a folder": (lambda folder: as_file(TEXT)(folder) / "p.json", "cannot be"),
    "a long name": (lambda folder: folder / ("a" * 300), "cannot be read"),
    "a long path": (lambda folder: folder / ("a/" * 3000), "cannot be read"),
    "a file of 10 GiB": (make_sparse("p.json"), "is too large"),
    "a locked file": (make_locked, "cannot be read"),
    "a name with escape sequences": (as_file("{", f"{ESCAPES}.json"), "is not JSON"),
    "a name with line breaks": (as_file("{", "a\nlockstep: b\r.json"), "is not JSON"),
    "a name that is no text": (as_file("{", "\udcff\udcfe.json"), "is not JSON"),
}
FOLDERS: Cases = {
    "an empty folder": (make_folder, "no program file (.json, .jsonl) in this folder"),
    "links in a circle": (make_folder_of_loops, "no program file"),
    "pipes": (make_folder_of_pipes, "no program file"),
}


def as_driver(script: str | bytes, mode: int = 0o755) -> Make:
    """A file that is started as a driver. What else one may answer is in `exec`."""

    def make(folder: Path) -> Path:
        path = as_file(script, "driver")(folder)
        path.chmod(mode)
        return path

    return make


def answering(line: str) -> Make:
    """A driver that says one line whatever it is asked."""
    return as_driver(f"#!/bin/sh\nread request\ncat <<'EOF'\n{line}\nEOF\n")


HELLO = '{"id": 1, "protocol": 1, "name": "it", "contracts": {"layer": {"kv": %s}}}'

DRIVERS: Cases = {
    "no program": (as_driver("", 0o644), "cannot be executed; chmod +x"),
    "a folder": (make_folder, "p.json is a folder"),
    "an interpreter that is not there": (
        as_driver("#!/nothing/sh\n"),
        "a snippet cannot be made",
    ),
    "escape sequences": (answering(ESCAPES), "a snippet cannot be made"),
    "words that do harm": (
        as_driver(f"#!/bin/sh\nprintf '%s\\n' '{ESCAPES}' >&2\nexit 1\n"),
        "a snippet cannot be made",
    ),
    "operations that are none": (
        answering(HELLO % f'{{"operations": ["{ESCAPES[1:5]}"]}}'),
        "a snippet cannot be made",
    ),
    "a line without end": (
        as_driver("#!/bin/sh\nread request\nexec cat /dev/zero\n"),
        "bytes",
    ),
}
