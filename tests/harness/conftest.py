"""Programs, a small backend and the command, for the tests of the harness."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.registry import load

ROOT = Path(__file__).parents[2]

Make = Callable[..., Program]


@pytest.fixture
def make() -> Make:
    """A program of the layer contract: make(*ops, field of the config=value, …)."""

    def make(*ops: Mapping[str, Any], **config: Any) -> Program:
        document = {
            "format": "lockstep/1",
            "contract": "layer",
            "config": {"kind": "kv", **config},
            "ops": list(ops),
        }
        return parse_program(document, "here")

    return make


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Backend]:
    """A backend of `misbehaving`, by the name of its factory."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: load(f"tests.harness.misbehaving:{name}")


@dataclass(frozen=True)
class Ended:
    """What a command has left."""

    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """All that was printed, without the breaks of the terminal."""
        return " ".join((self.out + self.err).split())


Lockstep = Callable[..., Ended]


def get_environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**inherited, "COLUMNS": "80", **more}


# What runs in the background of a shell without job control, as on a CI machine, is
# started with Ctrl-C ignored, and so are its children.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from lockstep.harness.cli.main import main
main()
"""


def start(arguments: Sequence[object], **more: str) -> subprocess.Popen[str]:
    """`lockstep` in the background."""
    return subprocess.Popen(
        [sys.executable, "-c", START] + [str(argument) for argument in arguments],
        cwd=ROOT,
        env=get_environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def wait(process: subprocess.Popen[str], seconds: float = 60) -> Ended:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, out, err)


@pytest.fixture
def lockstep() -> Lockstep:
    """Runs `lockstep` with these arguments as a process of its own."""

    def lockstep(*arguments: object, **environment: str) -> Ended:
        return wait(start(arguments, **environment))

    return lockstep


@pytest.fixture
def begin() -> Callable[..., subprocess.Popen[str]]:
    """The same in the background."""
    return lambda *arguments, **environment: start(arguments, **environment)
