"""Waiting until the sources of a backend change."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from lockstep.harness.core.errors import clean

POLL_SECONDS = 0.25
"""Between two looks at the files."""

SKIPPED = {"__pycache__", ".git"}
"""Folders whose files are not sources."""

SHOWN = 4000
"""Letters of the end of what a build says."""

Stamps = Mapping[Path, tuple[int, int]]
"""File → when it was changed, and its size."""


def take_stamps(paths: Collection[Path]) -> Stamps:
    """Reads the stamps of files, and of the files in folders. Missing files are left out,
    since an editor may be replacing them."""
    stamps = {}
    for file in list_watched(paths):
        try:
            status = file.stat()
        except OSError:
            continue
        stamps[file] = status.st_mtime_ns, status.st_size
    return stamps


def list_watched(paths: Collection[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if name not in SKIPPED]
            yield from (Path(folder, name) for name in files)


def wait_for_change(paths: Collection[Path], before: Stamps) -> list[Path]:
    """Waits until files differ from `before`, and then until they stop changing, since an
    editor may write several files, or one in pieces.

    Returns:
        The files that have changed.
    """
    while (now := take_stamps(paths)) == before:
        time.sleep(POLL_SECONDS)
    while True:
        time.sleep(POLL_SECONDS)
        latest = take_stamps(paths)
        if latest == now:
            break
        now = latest
    changed = now.items() ^ before.items()
    return sorted({file for file, _ in changed})


def build(command: str) -> str | None:
    """Runs a command line of the user in the shell.

    Returns:
        Why it failed, with the end of what it said; None if it did not.
    """
    done = subprocess.run(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if not done.returncode:
        return None
    said = done.stdout.decode(errors="replace")[-SHOWN:]
    lines = "\n".join(clean(line, SHOWN) for line in said.splitlines())
    return f"exit status {done.returncode}\n{lines}"
