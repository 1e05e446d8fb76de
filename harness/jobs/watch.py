"""Waits until the sources of a backend change, and builds them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from lockstep.harness.core.errors import clean

POLL_SECONDS = 0.25
"""The time between two looks at the files."""

SKIPPED = {"__pycache__", ".git"}
"""Folders whose files are not sources."""

SHOWN = 4000
"""The number of characters of a build's output that are shown, from its end."""

Stamps = Mapping[Path, tuple[int, int]]
"""File → the time of its last change, and its size."""


def take_stamps(paths: Collection[Path]) -> Stamps:
    """Reads the stamps of files, and of the files in folders. Skips missing files, since
    an editor may be replacing them."""
    files = [path for path in paths if not path.is_dir()]
    for path in paths:
        for folder, folders, names in os.walk(path):  # nothing, if it is a file
            folders[:] = [name for name in folders if name not in SKIPPED]
            files += [Path(folder, name) for name in names]
    stamps = {}
    for file in files:
        with suppress(OSError):
            status = file.stat()
            stamps[file] = status.st_mtime_ns, status.st_size
    return stamps


def wait_for_change(paths: Collection[Path], before: Stamps) -> list[Path]:
    """Waits until files differ from `before`, and then until they stop changing.

    An editor may write several files, or write a file in pieces.

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
    """Runs a command line of the user in the shell. The output goes to a file, because a
    background process of the command may keep the output open.

    Returns:
        The exit status and the end of the output, if the command failed; else None.
    """
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        if not done.returncode:
            return None
        # A character has up to four bytes.
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * SHOWN))
        said = output.read().decode(errors="replace")[-SHOWN:]
    lines = "\n".join(clean(line, SHOWN) for line in said.splitlines())
    return f"exit status {done.returncode}\n{lines}"
