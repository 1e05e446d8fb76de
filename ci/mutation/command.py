"""Looks for a mutant with a command, in whose processes the module has other source."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from ci.mutation.mutants import Mutant

MAX_SECONDS = 600.0

PLAIN = {"PYTEST_ADDOPTS": "--assert=plain"}
"""pytest reads the source of modules that have its plugins itself, to rewrite asserts."""

HOOK = """
import importlib.machinery, pathlib
own = importlib.machinery.SourceFileLoader.get_code
source = pathlib.Path(__file__).with_name("source").read_bytes()

def get_code(self, name):
    if name == {module!r}:
        return compile(source, self.path, "exec", dont_inherit=True)
    return own(self, name)

importlib.machinery.SourceFileLoader.get_code = get_code
"""


def list_tests(root: Path, file: str) -> str:
    """Returns the command that runs the tests that import a module; empty for none."""
    module = Mutant.get_module(file)
    parent, _, name = module.rpartition(".")
    pattern = re.compile(
        rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{re.escape(name)}\b"
    )
    tests = sorted((root / "tests").rglob("test_*.py"))
    paths = [str(path) for path in tests if pattern.search(path.read_text())]
    return shlex.join(["pytest", "-q", "-x", *paths]) if paths else ""


def run_command(root: Path, command: str, mutant: Mutant | None = None) -> str | None:
    """Returns how a command fails with a mutant, or None if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(root), os.environ.get("PYTHONPATH", "")]
        if mutant:
            (Path(folder) / "sitecustomize.py").write_text(
                HOOK.format(module=mutant.module)
            )
            (Path(folder) / "source").write_bytes(mutant.source)
            paths = [folder, *paths]
        program, *arguments = shlex.split(command)
        modules = {"lockstep": "lockstep.harness", "pytest": "pytest"}
        start = [sys.executable, "-m", modules[program]] if program in modules else None
        try:
            ended = subprocess.run(
                [*(start or [program]), *arguments],
                cwd=root,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **PLAIN},
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"hang: more than {MAX_SECONDS:g} s"
    lines = [line for line in ended.stdout.splitlines() if "FAILED" in line]
    return (
        f"status {ended.returncode} {' '.join(lines[:1])}" if ended.returncode else None
    )
