"""A cache that changes from release to release, as a repository and as wheels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

from tests.harness.building import SMALL, make, update

META = {"signature": "layer-kv-update-contents"}
PROGRAM = {**make(update(3), **SMALL).to_json(), "meta": META}

AGREES = "from tests.harness.misbehaving import correct as make\n"
SHOWS = """from tests.harness.misbehaving import change_keys, show_nan

make = change_keys(show_nan)
"""
FAILS_TO_IMPORT = "import a_module_that_nobody_has\n"


def write_program(folder: Path) -> Path:
    path = folder / "p.json"
    path.write_text(json.dumps(PROGRAM))
    return path


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A. Uthor", "-c", "user.email=a@example.org")
    command = ["git", *who, "-c", "commit.gpgsign=false", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(folder: Path, commits: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Makes one. commits: subject → files that it writes. Returns the commits' names."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for subject, files in commits.items():
        for name, text in files.items():
            (folder / name).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "--allow-empty", "-m", subject)
    return git(folder, "rev-list", "--reverse", "HEAD").split()


def make_wheel(folder: Path, version: str, text: str) -> None:
    """A wheel of `toy-cache`, whose one module has this text."""
    folder.mkdir(exist_ok=True)
    info = f"toy_cache-{version}.dist-info"
    files = {
        "toy_cache.py": text,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: toy-cache\n"
        f"Version: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with ZipFile(folder / f"toy_cache-{version}-py3-none-any.whl", "w") as wheel:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, content)
