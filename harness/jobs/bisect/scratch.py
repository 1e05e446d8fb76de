"""Makes scratch environments, and runs commands with a time limit in them.

A scratch environment is a virtual environment that shares all packages of the current
one, including Lockstep. Packages that are installed into it come first. Therefore, a
release is installed in seconds, and no other package differs.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import venv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lockstep.harness.core.errors import clean, format_exit
from lockstep.harness.core.interrupts import shielded

SHARING = '''"""Shares the packages of another environment, behind those of this one."""

import site
import sys
from importlib.machinery import PathFinder

# An editable install may be a finder, and would come behind the folders that are shared.
first = sys.meta_path.index(PathFinder)
sys.meta_path[first:] = [*sys.meta_path[first + 1 :], PathFinder]
for folder in {folders!r}:
    site.addsitedir(folder)
'''

PIP = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'
"""The script `pip` of a scratch environment, so that a build does not call the `pip`
of another environment."""

LAST_WORDS = 4000
OF_GIT = ("PYTHONHOME", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


class Untestable(Exception):
    """A release does not install, build or import, or its backend is refused."""


def make_environment(folder: Path) -> dict[str, str]:
    """Makes a new scratch environment; returns the environment variables for it."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    module = SHARING.format(folders=list_site_folders())
    (packages / "_lockstep_sharing.py").write_text(module)
    # Files of this kind are read in the order of their names.
    (packages / "zzz_lockstep_sharing.pth").write_text("import _lockstep_sharing\n")
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(PIP)
        script.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if name not in OF_GIT},
        **{
            name: os.pathsep.join(filter(None, [str(first), os.environ.get(name)]))
            for name, first in (("PATH", folder / "bin"), ("PYTHONPATH", packages))
        },
        "VIRTUAL_ENV": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }


def list_site_folders() -> list[str]:
    """Lists the folders of installed packages of this process."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in [*site.getsitepackages(), *user] if os.path.isdir(path)]


class Runner:
    """Runs commands in a scratch environment, one at a time.

    Args:
        folder: the folder of the environment and of the output of commands.
        seconds: the time limit of a command.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.environment, self.log = folder / "environment", folder / "log.txt"

    def run(
        self,
        name: str,
        command: str,
        variables: Mapping[str, str],
        workplace: Path | None = None,
    ) -> None:
        """Runs a command to its end, and ends all processes that it has started.

        Args:
            name: the name of the command in messages.
            command: a line for the shell.
            variables: the whole environment of the command.
            workplace: the folder in which the command runs; None for the current folder.

        Raises:
            Untestable: it failed, or took too long.
        """
        process = None
        try:
            with shielded(), self.log.open("wb") as log:  # every process is recorded
                process = subprocess.Popen(
                    command,
                    shell=True,
                    cwd=workplace,
                    env=dict(variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            status = process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            limit = f"{self.seconds:g} s; --limit gives it more"
            raise Untestable(f"{name} took longer than {limit}") from None
        finally:
            if process:
                with shielded(), suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            raise Untestable(f"{name}: {format_exit(status)}: {self.get_last_words()}")

    def get_last_words(self) -> str:
        """Returns the last line of the output that names an error, or the last line."""
        text = self.log.read_bytes()[-LAST_WORDS:].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return clean((errors or lines or ["it said nothing"])[-1])
