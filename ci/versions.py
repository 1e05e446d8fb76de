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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TOOLS = ("coverage", "ruff", "mypy", "types-jsonschema", "setuptools>=77")
"""The suite needs them, but they are no part of what is tested."""

SHOWN = (
    "numpy", "hypothesis", "pytest", "msgspec", "torch", "mlx", "mlx-lm", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class PackageSet:
    """Packages to install.

    Attributes:
        extras: of this project.
        resolution: uv's word for the versions to choose.
    """

    extras: str
    resolution: str


SETS: Mapping[str, PackageSet] = {
    # Our own caches hold with older frameworks than the peers need.
    "lowest-own": PackageSet("torch,mlx,test", "lowest-direct"),
    "lowest": PackageSet("torch,mlx,peers,test", "lowest-direct"),
    "plain": PackageSet("test", "highest"),
    "newest": PackageSet("all", "highest"),
}


@dataclass
class Environment:
    """A virtual environment with one set of packages."""

    folder: Path
    python: str
    packages: PackageSet

    def run(self, *command: str) -> int:
        """Runs a command of the environment in the project's folder."""
        print("$", *command, flush=True)
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]], cwd=ROOT, check=False
        ).returncode

    def install(self, constraints: Sequence[str]) -> None:
        """Raises CalledProcessError if there is no such Python or package."""
        uv = sys.executable, "-m", "uv"
        into = "--python", str(self.folder / "bin" / "python")
        own = f"{ROOT}[{self.packages.extras}]"
        chosen = [f"--constraint={path}" for path in constraints]
        for command in (
            ("venv", "--python", self.python, str(self.folder)),
            ("pip", "install", *into, *TOOLS),
            (
                *("pip", "install", *into, "--resolution", self.packages.resolution),
                *(*chosen, "--editable", own),
            ),
        ):
            print("$ uv", *command, flush=True)
            subprocess.run([*uv, *command], cwd=ROOT, check=True)

    def list_versions(self) -> dict[str, str]:
        """Returns package → version of what is tested."""
        command = sys.executable, "-m", "uv", "pip", "list", "--format=json", "--python"
        listed = subprocess.run(
            [*command, str(self.folder / "bin" / "python")],
            capture_output=True,
            check=True,
            text=True,
        )
        found = {each["name"]: each["version"] for each in json.loads(listed.stdout)}
        return {name: found[name] for name in SHOWN if name in found}

    def test(self) -> bool:
        """Runs the two commands of the README; whether both end with 0."""
        failures = str(self.folder / "failures")
        check = "lockstep", "check", "--profile", "quick", "--failures", failures
        suite = "pytest", "-q", "-n", "auto"
        return [self.run(*check), self.run(*suite)] == [0, 0]


def main() -> int:
    options = parse()
    rows: list[str] = []
    for name in options.sets:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"lockstep-{name}-") as folder:
            environment = Environment(Path(folder), options.python, SETS[name])
            try:
                environment.install(options.constraint)
                versions = environment.list_versions()
                verdict = "passed" if environment.test() else "FAILED"
            except subprocess.CalledProcessError:
                verdict, versions = "FAILED: cannot be installed", {}
        words = ", ".join(f"{package} {version}" for package, version in versions.items())
        seconds = time.monotonic() - began
        rows.append(f"{name}, Python {options.python}: {verdict} in {seconds:.0f} s")
        rows.append(f"  {words}")
    print(*rows, sep="\n")
    return int(any("FAILED" in row for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs the suite with the lowest and the newest declared versions.",
        epilog=f"Sets: {', '.join(SETS)}.",
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help="default: all of them")
    parser.add_argument(
        "--python",
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        metavar="VERSION",
        help="default: the one that runs this script (%(default)s)",
    )
    parser.add_argument(
        "--constraint", action="append", default=[], metavar="FILE", help="for pip"
    )
    options = parser.parse_args()
    unknown = [name for name in options.sets if name not in SETS]
    if unknown:
        parser.error(f"there is no set {unknown[0]}; choose from {', '.join(SETS)}")
    options.sets = options.sets or [*SETS]
    return options


if __name__ == "__main__":
    sys.exit(main())
