"""Runs the suite with the lowest and the newest versions that the project declares.

    python ci/versions.py                        this Python, all four sets of packages
    python ci/versions.py --python 3.13 newest   another Python, one set

Each set gets a virtual environment of its own. uv (https://docs.astral.sh/uv) makes it,
because it can choose the lowest versions of what pyproject.toml names. In each, `lockstep
check` runs with the quick profile, then pytest. The last lines say what each came to;
the exit status is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TOOLS = ("coverage", "ruff", "mypy", "types-jsonschema", "setuptools>=77", "syrupy")
"""The suite needs them, but they are no part of what is tested."""

SHOWN = (
    "numpy",
    "hypothesis",
    "pytest",
    "msgspec",
    "torch",
    "mlx",
    "mlx-lm",
    "transformers",
)

SETS = {
    # Our own caches hold with older frameworks than the peers need.
    "lowest-own": ("torch,mlx,test", "lowest-direct"),
    "lowest": ("torch,mlx,peers,test", "lowest-direct"),
    "plain": ("test", "highest"),
    "newest": ("all", "highest"),
}
"""Name → extras of this project, and uv's word for the versions to choose."""


def run(*command: str) -> None:
    """Raises CalledProcessError if it fails."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def install(name: str, python: str, folder: Path, constraints: Sequence[str]) -> Path:
    """Makes an environment; returns its programs."""
    extras, resolution = SETS[name]
    uv, programs = (sys.executable, "-m", "uv"), folder / "bin"
    pip = (*uv, "pip", "install", "--python", str(programs / "python"))
    chosen = [f"--constraint={path}" for path in constraints]
    run(*uv, "venv", "--python", python, str(folder))
    run(*pip, *TOOLS)
    own = "--editable", f"{ROOT}[{extras}]"
    run(*pip, "--resolution", resolution, *chosen, *own)
    return programs


def list_versions(programs: Path) -> str:
    command = sys.executable, "-m", "uv", "pip", "list", "--format=json", "--python"
    listed = subprocess.check_output([*command, str(programs / "python")], text=True)
    versions = {package["name"]: package["version"] for package in json.loads(listed)}
    return ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)


def test(name: str, python: str, constraints: Sequence[str]) -> tuple[str, str]:
    """Runs the two commands of the README; returns a verdict and the versions."""
    with tempfile.TemporaryDirectory(prefix=f"lockstep-{name}-") as folder:
        try:
            programs = install(name, python, Path(folder), constraints)
        except subprocess.CalledProcessError:
            return "FAILED: cannot be installed", ""
        check = ("check", "--profile", "quick", "--failures", f"{folder}/failures")
        failed = []
        for program, *arguments in (("lockstep", *check), ("pytest", "-q", "-n", "auto")):
            try:
                run(str(programs / program), *arguments)
            except subprocess.CalledProcessError:
                failed.append(program)
        return f"FAILED: {', '.join(failed)}" if failed else "passed", list_versions(
            programs
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="\n".join((__doc__ or "").splitlines()[:1])
    )
    sets = {"nargs": "*", "metavar": "SET", "help": f"of {', '.join(SETS)}; default: all"}
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    constraints = {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "for pip",
    }
    parser.add_argument("sets", **sets)
    parser.add_argument(
        "--python", default=own, metavar="VERSION", help="default: this one"
    )
    parser.add_argument("--constraint", **constraints)
    options = parser.parse_args()
    for name in options.sets:
        if name not in SETS:
            parser.error(f"there is no set {name}; choose from {', '.join(SETS)}")
    rows = []
    for name in options.sets or SETS:
        began = time.monotonic()
        verdict, versions = test(name, options.python, options.constraint)
        seconds = time.monotonic() - began
        rows.append(f"{name}, Python {options.python}: {verdict} in {seconds:.0f} s")
        rows.append(f"  {versions}")
    print(*rows, sep="\n")
    return int(any("FAILED" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
