"""Files that are none, folders without any, and names that do harm."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.harness.hostile.makers import ESCAPES, TEXT, Cases, Make, as_file


def make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "p.json")
    return folder / "p.json"


def make_socket(folder: Path) -> Path:
    path = folder / "p.json"
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        os.chdir(folder)  # the path of a socket must be short
        server.bind("p.json")
        os.fchdir(here)
        os.close(here)
    return path


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
    "a socket": (make_socket, "is a pipe or a device"),
    "a device without end": (lambda folder: Path("/dev/zero"), "is a pipe or a device"),
    "a device of nothing": (lambda folder: Path("/dev/null"), "is a pipe or a device"),
    "memory": (lambda folder: Path("/proc/self/mem"), "cannot be read"),
    "links in a circle": (make_loop, "cannot be read"),
    "a link to nothing": (make_dangling, "there is no such file"),
    "a file as a folder": (lambda folder: as_file(TEXT)(folder) / "p.json", "cannot be"),
    "a long name": (lambda folder: folder / ("a" * 300), "cannot be read"),
    "a long path": (lambda folder: folder / ("a/" * 3000), "cannot be read"),
    "a file of 10 GiB": (make_sparse("p.json"), "is too large"),
    "a zip of 10 GiB": (make_sparse("a.zip"), "is too large"),
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
