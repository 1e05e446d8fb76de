"""Prepares releases of a package and commits of a repository to run a program.

`Releases` and `Commits` list releases and commits, the oldest first. `prepare` installs
or builds a release or commit in a scratch environment, and returns the environment
variables; it may raise `Untestable`. The program runs in the folder `workplace`, or in
the current folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.bisect.scratch import Runner, make_environment

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = "{version}"
SECONDS = 600.0
"""The time limit of pip for listing releases, and of a command of git."""


def ask(
    command: Sequence[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a command, and returns its output."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env=dict(variables),
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]}: {error}") from None


# --- releases ---------------------------------------------------------------------------


class Releases:
    """The releases of a package that pip lists and installs, with pip's settings.

    Args:
        package: the name of the package.
        text: "A..B", the oldest and the newest release; None for all releases.
        companions: requirements that are installed with each release; VERSION stands for
            the version of the release.

    Raises:
        UsageError: the package or a release does not exist, or there is only one release.
    """

    def __init__(self, package: str, text: str | None, companions: Sequence[str]) -> None:
        if not NAME.fullmatch(package):
            raise UsageError(f"--package {package}: is not the name of a package")
        try:
            for companion in companions:
                Requirement(companion.replace(VERSION, "1"))
        except ValueError as error:  # InvalidRequirement, or a number of 5,000 digits
            raise UsageError(f"--with {companion}: {clean(str(error))}") from None
        self.workplace: Path | None = None
        self.package, self.companions = package, companions
        self.versions = [*map(str, select(package, text))]
        self.names = [f"{package} {version}" for version in self.versions]

    def prepare(self, number: int, runner: Runner) -> dict[str, str]:
        variables, version = make_environment(runner.environment), self.versions[number]
        beside = [companion.replace(VERSION, version) for companion in self.companions]
        command = [*find_pip(), "--python", str(runner.environment / "bin" / "python")]
        command += ["install", "--no-deps", "--ignore-installed"]
        command += [f"{self.package}=={version}", *beside]
        runner.run(f"install {self.package} {version}", shlex.join(command), variables)
        return variables


def find_pip() -> list[str]:
    """Returns the command that runs pip."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError("neither pip nor uv is installed; run python -m ensurepip")
    return [uv, "tool", "run", "--python", sys.executable, "pip"]


def select(package: str, text: str | None) -> list[Version]:
    """Returns the releases of a range, the oldest first."""
    low, high = (None, None) if text is None else parse_range(text)
    is_early = any(end is not None and end.is_prerelease for end in (low, high))
    versions = list_releases(package, is_early)
    for end in (low, high):
        if end is not None and end not in versions:
            hint = suggest(str(end), dict.fromkeys(map(str, versions)))
            raise UsageError(f"--versions: {package} has no release {end}{hint}")
    low, high = low or versions[0], high or versions[-1]
    chosen = [version for version in versions if low <= version <= high]
    if len(chosen) < 2:
        names = ", ".join(map(str, chosen)) or "none"
        raise UsageError(
            f"{package}: a search needs at least two releases; found: {names}"
        )
    return chosen


def parse_range(text: str) -> tuple[Version | None, Version | None]:
    """Returns A and B of "A..B". None stands for a missing end."""
    first, dots, last = text.partition("..")
    try:
        if not dots or not (first or last):
            raise InvalidVersion
        return Version(first) if first else None, Version(last) if last else None
    except ValueError:  # InvalidVersion, or a number of 5,000 digits
        hint = "give two versions, or one: 1.2..1.9, 1.2.. or ..1.9"
        raise UsageError(f"--versions {text}: {hint}") from None


def list_releases(package: str, is_early: bool) -> list[Version]:
    """Lists the releases that can be installed here, including prereleases if
    `is_early`."""
    command = [*find_pip(), "index", "versions", package, "--retries", "2"]
    ended = ask([*command, *["--pre"] * is_early], os.environ)
    listed = re.findall(r"^Available versions: (.*)$", ended.stdout, re.MULTILINE)
    if ended.returncode or not listed:
        errors = re.findall("^ERROR.*", ended.stderr, re.MULTILINE) or [ended.stderr]
        reason = f"no release can be installed here; pip: {clean(errors[-1])}"
        raise UsageError(f"--package {package}: {reason}; is there a network?")
    return sorted(map(Version, listed[0].split(", ")))


# --- commits ----------------------------------------------------------------------------


class Commits:
    """The commits between two revisions, along first parents, so that a merge counts as
    one commit. Commits are built in a clone without remotes; the user's checkout is never
    changed.

    Args:
        repository: the repository of the user.
        good, bad: the revisions.
        build: a command line for the shell; None to put the clone on PYTHONPATH.
        clone: the folder of the clone.

    Raises:
        UsageError: this is not a repository, a revision is unknown, or there are no
            commits between the two.
    """

    def __init__(
        self, repository: Path, good: str, bad: str, build: str | None, clone: Path
    ) -> None:
        self.repository, self.build, self.clone = repository, build, clone
        self.workplace: Path | None = clone
        origin = self.git("rev-parse", "--absolute-git-dir")
        parse = "rev-parse", "--verify", "--end-of-options"
        ends = [self.git(*parse, f"{end}^{{commit}}") for end in (good, bad)]
        listed = self.list_commits(*ends) or self.list_commits(*reversed(ends))
        if not listed:
            raise UsageError(
                f"--good {good} and --bad {bad}: neither is an ancestor of the other;"
                " give two commits of one branch"
            )
        self.ids = [commit for commit, _ in listed]
        self.names = [f"{commit[:12]} ({clean(text, 60)})" for commit, text in listed]
        clone.parent.mkdir(exist_ok=True)
        options = "--quiet", "--shared", "--no-checkout", "--origin", "origin"
        self.git("clone", *options, origin, str(clone))
        self.git("-C", str(clone), "remote", "remove", "origin")

    def git(self, *arguments: str) -> str:
        """Runs git in this repository, without hooks; returns the output."""
        if not self.repository.is_dir():
            raise UsageError(f"--git {self.repository}: is not a git repository")
        no_hooks = f"core.hooksPath={os.devnull}"
        command = ["git", "-C", str(self.repository), "-c", no_hooks, *arguments]
        inherited = {name: os.environ[name] for name in os.environ if name[:4] != "GIT_"}
        settings = {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        ended = ask(command, {**inherited, **settings})
        if ended.returncode:
            raise UsageError(f"--git {self.repository}: {clean(ended.stderr)}")
        return ended.stdout.strip()

    def list_commits(self, old: str, new: str) -> list[tuple[str, str]]:
        """Returns the ids and subjects of the commits from `old` to `new`; an empty list
        if `new` does not follow `old`."""
        form = ("log", "--first-parent", "--reverse", "--format=%H %s")
        lines = self.git(*form, "--ancestry-path", f"{old}..{new}").splitlines()
        first = [self.git(*form, "-1", old)] if lines else []
        return [(line[: len(old)], line[len(old) + 1 :]) for line in [*first, *lines]]

    def prepare(self, number: int, runner: Runner) -> dict[str, str]:
        commit, clone = self.ids[number], ("-C", str(self.clone))
        self.git(*clone, "checkout", "--quiet", "--force", "--detach", commit)
        self.git(*clone, "clean", "--quiet", "-ffdx")
        variables, top = make_environment(runner.environment), self.repository.resolve()
        environment, *folders = variables["PYTHONPATH"].split(os.pathsep)
        moved = [str(self.clone)] if self.build is None else []
        for folder in map(Path, folders):  # folders of the checkout: those of the clone
            inside = folder.is_relative_to(top)
            moved.append(str(self.clone / folder.relative_to(top) if inside else folder))
        variables["PYTHONPATH"] = os.pathsep.join([environment, *moved])
        if self.build is not None:
            runner.run(f"build {commit[:12]}", self.build, variables, self.clone)
        return variables


Source = Releases | Commits
