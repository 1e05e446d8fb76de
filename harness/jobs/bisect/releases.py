"""Releases of a package: which there are, and each in an environment of its own.

pip lists and installs them, so that its settings hold: the index, certificates, proxies.
Where this environment has no pip, as those that uv makes, uv runs pip.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.bisect.scratch import Runner, Scratch, list_site_folders
from lockstep.harness.workers.registry import find_entry
from lockstep.harness.workers.requirements import list_extras, list_requirements

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

VERSION = "{version}"
LIST_SECONDS = 120.0
UNREACHED = ("Retrying (", "Could not fetch URL", "connection error", "ProxyError")
"""What pip says of an index that does not answer."""


# --- which there are --------------------------------------------------------------------


def find_pip() -> list[str]:
    """The command that is pip."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError(
            "neither pip nor uv is installed here; make pip: python -m ensurepip"
        )
    return [uv, "tool", "run", "--python", sys.executable, "pip"]


def list_releases(package: str, prereleases: bool) -> list[Version]:
    """The releases that can be installed here, the oldest first.

    Raises:
        UsageError: there is no such package, or the index does not answer.
    """
    if not NAME.fullmatch(package):
        raise UsageError(f"--package {package}: is not the name of a package")
    own = ["index", "versions", package, "--retries", "2"]
    command = [*find_pip(), *own, *["--pre"] * prereleases]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{package}: pip did not list its releases within {LIST_SECONDS:g} s"
        ) from None
    versions = parse_versions(ended.stdout)
    if ended.returncode or not versions:
        raise UsageError(explain_nothing(package, ended.stderr))
    return versions


def parse_versions(text: str) -> list[Version]:
    """The versions that `pip index versions` prints; odd ones are left out."""
    found = set()
    for line in re.findall(r"^Available versions: (.*)$", text, re.MULTILINE):
        for word in line.split(","):
            try:
                found.add(Version(word.strip()))
            except InvalidVersion:
                continue
    return sorted(found)


def explain_nothing(package: str, said: str) -> str:
    """Why pip lists nothing. said: what it wrote on standard error."""
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    last = clean(errors[-1] if errors else said[-300:])
    if any(words in said for words in UNREACHED):
        return (
            f"{package}: the package index cannot be reached; is there a network, and is"
            f" pip's index right (pip config list)? pip: {last}"
        )
    return f"--package {package}: no release can be installed here; pip: {last}"


def parse_range(text: str) -> tuple[Version | None, Version | None]:
    """The ends of "A..B", of which each may be missing.

    Raises:
        UsageError: it is something else.
    """
    first, dots, last = text.partition("..")
    try:
        if not dots or not (first or last):
            raise InvalidVersion
        return Version(first) if first else None, Version(last) if last else None
    except InvalidVersion:
        raise UsageError(
            f"--versions {text}: give two versions, or one: 1.2..1.9, 1.2.. or ..1.9"
        ) from None


def find_declared(backend: str, package: str) -> SpecifierSet | None:
    """The versions that a registered backend is tested with; None if it names none."""
    entry = find_entry(backend)
    if entry is None or entry.dist is None:
        return None
    needed = [
        one.specifier
        for one in list_requirements(entry.dist, list_extras(entry))
        if canonicalize_name(one.name) == canonicalize_name(package)
    ]
    return SpecifierSet(",".join(map(str, needed))) if needed else None


def select(
    package: str,
    versions: Sequence[Version],
    ends: tuple[Version | None, Version | None],
    declared: SpecifierSet | None,
) -> list[Version]:
    """The releases to search.

    Args:
        package: for messages.
        versions: all that there are.
        ends: see `parse_range`.
        declared: the versions that the backend is tested with; None for all.

    Raises:
        UsageError: there is no such version, or fewer than two are left.
    """
    known = dict.fromkeys(map(str, versions))
    for end in ends:
        if end is not None and end not in versions:
            hint = suggest(str(end), known) if len(known) < 10 else near(end, versions)
            raise UsageError(f"--versions: {package} has no release {end}{hint}")
    low, high = ends[0] or versions[0], ends[1] or versions[-1]
    inside = [version for version in versions if low <= version <= high]
    left = [v for v in inside if declared is None or declared.contains(v, True)]
    if len(left) > 1:
        return left
    named = ", ".join(map(str, left)) or "none"
    if len(inside) > 1:
        raise UsageError(
            f"{package}: of {len(inside)} releases the backend is tested with {named}"
            f" ({declared}); --unsupported searches all, --versions fewer"
        )
    raise UsageError(f"{package}: a search needs two releases; there is {named}")


def near(wanted: Version, versions: Sequence[Version]) -> str:
    """Words for the releases beside one that does not exist."""
    below = [str(version) for version in versions if version < wanted][-1:]
    above = [str(version) for version in versions if version > wanted][:1]
    return f"; there is {' and '.join(below + above)}"


def parse_companions(texts: Sequence[str]) -> list[str]:
    """Requirements that are installed beside each release, in which VERSION stands for
    its version."""
    for text in texts:
        try:
            Requirement(text.replace(VERSION, "1"))
        except InvalidRequirement as error:
            raise UsageError(f"--with {text}: {clean(str(error))}") from None
    return list(texts)


# --- each in an environment of its own --------------------------------------------------


@dataclass
class Releases:
    """The releases of a package in scratch environments, which are kept and used again.

    Attributes:
        companions: requirements that are installed beside each release.
        dependencies: also install what a release requires and is not here.
        cache: the folder of the environments.
    """

    package: str
    versions: Sequence[Version]
    companions: Sequence[str]
    dependencies: bool
    cache: Path
    pip: Sequence[str] = field(default_factory=find_pip)

    @property
    def names(self) -> list[str]:
        return [f"{self.package} {version}" for version in self.versions]

    def prepare(self, number: int, runner: Runner) -> Scratch:
        """The environment with a release in it.

        Raises:
            Untestable: it cannot be installed.
        """
        name = f"{canonicalize_name(self.package)}-{self.versions[number]}"
        ready = Scratch(self.cache / "releases" / f"{name}-{self.digest()}")
        if ready.folder.is_dir():
            return ready
        draft = Scratch(ready.folder.with_name(f"{ready.folder.name}.{os.getpid()}.tmp"))
        try:
            draft.make()
            self.install(number, draft, runner)
            put_in_place(draft.folder, ready.folder)
        except OSError as error:
            raise UsageError(
                f"{self.cache}: {error.strerror or error}; choose another folder with"
                " --cache"
            ) from None
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)
        return ready

    def install(self, number: int, scratch: Scratch, runner: Runner) -> None:
        version = str(self.versions[number])
        beside = [text.replace(VERSION, version) for text in self.companions]
        wanted = [f"{self.package}=={version}", *beside]
        install = [*self.pip, "--python", scratch.python, "install", "--no-compile"]
        name = f"install {canonicalize_name(self.package)} {self.versions[number]}"
        own = [*install, "--no-deps", "--ignore-installed", *wanted]
        runner.require(name, own, scratch.get_variables())
        if self.dependencies:
            runner.require(name, [*install, *wanted], scratch.get_variables())

    def digest(self) -> str:
        """The same for environments that can stand for each other."""
        about: list[object] = [sys.prefix, sys.version, list_site_folders()]
        about += [list(self.companions), self.dependencies]
        if self.dependencies:  # what is not here depends on what is
            about.append(sorted(f"{d.name}=={d.version}" for d in distributions()))
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]

    @property
    def is_alone(self) -> bool:
        """Whether a release is installed without what it requires."""
        return not self.dependencies

    @property
    def workplace(self) -> Path | None:
        """The folder in which the program runs: the current one."""
        return None

    def get_variables(self, scratch: Scratch) -> dict[str, str]:
        return scratch.get_variables()

    def describe(self, number: int) -> list[str]:
        """More about a release than its name."""
        return []


def put_in_place(draft: Path, ready: Path) -> None:
    """Puts a folder in its place; another process may have been faster."""
    try:
        draft.rename(ready)
    except OSError:
        if not ready.is_dir():
            raise
