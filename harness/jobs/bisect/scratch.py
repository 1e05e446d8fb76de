"""Scratch environments, and commands in them: bounded in time, with their output kept.

A scratch environment is a virtual environment that shares all packages of the one that
this process runs in, this very Lockstep among them. What is installed into it comes
before what is shared, so that a release costs seconds, and nothing else differs.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.harness.core.errors import UsageError, clean, format_exit
from lockstep.harness.core.interrupts import shielded
from lockstep.harness.jobs.bisect.search import Untestable

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

PIP = """#!/bin/sh
exec "$(dirname "$0")/python" -m pip "$@"
"""
"""The script `pip` of a scratch environment: a build that calls it must not find the one
of another environment."""

TICK = 0.25
LAST_WORDS = 4000

Watch = Callable[[], None]


@dataclass(frozen=True)
class Scratch:
    """A scratch environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        """The folder of its own packages."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / name / "site-packages"

    def make(self) -> None:
        """Makes it anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.EnvBuilder(with_pip=False, symlinks=True).create(self.folder)
        module = SHARING.format(folders=list_site_folders())
        (self.packages / "_lockstep_sharing.py").write_text(module)
        # Files of this kind are read in the order of their names.
        (self.packages / "zzz_lockstep_sharing.pth").write_text(
            "import _lockstep_sharing\n"
        )
        for name in ("pip", "pip3"):
            script = self.folder / "bin" / name
            script.write_text(PIP)
            script.chmod(0o755)

    def get_variables(self, path: Sequence[str] = ()) -> dict[str, str]:
        """The environment variables of a command in it. path: further folders of modules,
        before those of the user's PYTHONPATH."""
        left_out = ("PYTHONHOME", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
        kept = {name: os.environ[name] for name in os.environ if name not in left_out}
        folders = [str(self.packages), *path, os.environ.get("PYTHONPATH", "")]
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "VIRTUAL_ENV": str(self.folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
        }


def list_site_folders() -> list[str]:
    """The folders of installed packages of this process."""
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in [*site.getsitepackages(), *own] if os.path.isdir(folder)]


def get_cache_folder() -> Path:
    """The folder of what may be removed at any time, among those of the user."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"
    return home / "kv-lockstep" / "bisect"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Runner:
    """Runs commands, one at a time.

    Attributes:
        logs: the folder of what they print.
        seconds: the time that each may take.
        watch: is called several times a second.
    """

    logs: Path
    seconds: float
    watch: Watch

    def run(
        self,
        name: str,
        command: Sequence[str] | str,
        variables: Mapping[str, str],
        folder: Path | None = None,
        out: Path | None = None,
    ) -> int:
        """Runs a command to its end, and ends all that it has started.

        Args:
            name: of the file of what it prints, and of the command in messages.
            command: a line of text is one for the shell.
            variables: its whole environment.
            folder: where it runs; None for the current one.
            out: the file of its standard output; None if that belongs to the log.

        Returns:
            Its exit status.

        Raises:
            Untestable: it took too long.
            UsageError: it cannot be started.
        """
        process = None
        try:
            with shielded():  # a process that is started is known, and will be ended
                process = self.start(name, command, variables, folder, out)
            return self.wait(name, process)
        finally:
            if process:
                with shielded():
                    end_group(process)

    def start(
        self,
        name: str,
        command: Sequence[str] | str,
        variables: Mapping[str, str],
        folder: Path | None,
        out: Path | None,
    ) -> subprocess.Popen[bytes]:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                log = stack.enter_context(self.get_log(name).open("wb"))
                return subprocess.Popen(
                    command,
                    shell=isinstance(command, str),
                    cwd=folder,
                    env=dict(variables),
                    stdin=subprocess.DEVNULL,
                    stdout=stack.enter_context(out.open("wb")) if out else log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise UsageError(
                f"{name} cannot be started: {error}; --cache chooses the folder for what"
                " it prints"
            ) from None

    def wait(self, name: str, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + self.seconds
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(TICK)
            self.watch()
            if time.monotonic() > deadline:
                raise Untestable(
                    f"{name} took longer than {self.seconds:g} s;"
                    f" --limit gives it more; {self.get_log(name)}"
                )

    def require(
        self,
        name: str,
        command: Sequence[str] | str,
        variables: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        """Runs a command that must succeed. Raises Untestable with its last words."""
        status = self.run(name, command, variables, folder)
        if status:
            raise Untestable(
                f"{name}: {format_exit(status)}: {self.get_last_words(name)};"
                f" {self.get_log(name)}"
            )

    def get_log(self, name: str) -> Path:
        return self.logs / f"{name.replace(' ', '-')}.txt"

    def get_last_words(self, name: str) -> str:
        """What a command said last; of several lines, the last that names an error."""
        with self.get_log(name).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LAST_WORDS))
            text = log.read().decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return clean((errors or lines or ["it said nothing"])[-1])
