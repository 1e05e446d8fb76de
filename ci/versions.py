"""Runs the suite with the lowest and the newest versions that the project supports.

    python ci/versions.py                        this Python, all sets of packages
    python ci/versions.py --python 3.13 newest   another Python, one set

Each set of packages has a separate virtual environment. uv (https://docs.astral.sh/uv)
makes it, because uv can choose the lowest versions of the packages in pyproject.toml. In
each environment, `lockstep check` runs with the quick profile, then pytest. The set
`beyond` ignores the ranges of pyproject.toml: it has the newest release of each package
in BEYOND, and runs only `lockstep check --unsupported`, which names each ledger entry
that a release has mended. The last lines are the results of all sets; the exit status is
1 if a set failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]

TOOLS = ("coverage", "ruff", "mypy", "types-jsonschema", "setuptools>=77", "syrupy")
"""The suite needs them, but they are no part of what is tested."""

SETS = {
    # Our caches work with older frameworks than the peers need.
    "lowest-own": ("torch,mlx,test", "lowest-direct"),
    "lowest": ("torch,mlx,peers,test", "lowest-direct"),
    "plain": ("test", "highest"),
    "newest": ("all", "highest"),
    "beyond": ("all", "highest"),
}
"""Name → extras of this project, and uv's word for the versions to choose."""

BEYOND = ("numpy", "hypothesis", "torch", "mlx[cpu]", "mlx-lm", "transformers", "ray")

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(*command: str) -> bool:
    """Returns whether a command succeeds."""
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT).returncode == 0


def install(name: str, python: str, folder: Path, constraints: Sequence[str]) -> bool:
    """Makes an environment; returns whether it could be made."""
    extras, resolution = SETS[name]
    uv = sys.executable, "-m", "uv"
    pip = *uv, "pip", "install", "--python", str(folder / "bin" / "python")
    chosen = "--resolution", resolution, *(f"--constraint={path}" for path in constraints)
    return (
        run(*uv, "venv", "--python", python, str(folder))
        and run(*pip, *TOOLS)
        and run(*pip, *chosen, "--editable", f"{ROOT}[{extras}]")
        and (name != "beyond" or run(*pip, "--upgrade", *BEYOND))
    )


def test(name: str, python: str, constraints: Sequence[str]) -> str:
    """Runs the two commands of the README, and returns a verdict."""
    with tempfile.TemporaryDirectory(prefix=f"lockstep-{name}-") as folder:
        if not install(name, python, Path(folder), constraints):
            return "FAILED: cannot be installed"
        uv = sys.executable, "-m", "uv"
        run(*uv, "pip", "list", "--python", f"{folder}/bin/python")
        check = ("check", "--profile", "quick", "--failures", f"{folder}/failures")
        commands = [("lockstep", *check), ("pytest", "-q", "-n", "auto")]
        if name == "beyond":
            commands = [("lockstep", *check, "--unsupported")]
        failed = [
            program
            for program, *arguments in commands
            if not run(f"{folder}/bin/{program}", *arguments)
        ]
    return f"FAILED: {', '.join(failed)}" if failed else "passed"


@click.command()
@click.argument("sets", nargs=-1, type=click.Choice([*SETS]))
@click.option("--python", default=PYTHON, show_default=True, metavar="VERSION")
@click.option(
    "--constraint", "constraints", multiple=True, metavar="FILE", help="For pip."
)
def main(sets: Sequence[str], python: str, constraints: Sequence[str]) -> None:
    """Runs the suite with some sets of packages; default: all."""
    verdicts = {name: test(name, python, constraints) for name in sets or SETS}
    for name, verdict in verdicts.items():
        print(f"{name}, Python {python}: {verdict}")
    sys.exit(any(verdict != "passed" for verdict in verdicts.values()))


if __name__ == "__main__":
    main()
