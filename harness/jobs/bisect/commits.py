"""Commits of a git repository, built one after the other in a clone.

The user's checkout is only read: the clone borrows its objects, and has a working tree
and an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.bisect.scratch import Runner, Scratch
from lockstep.harness.jobs.bisect.search import Untestable

GIT_SECONDS = 600.0
SHORT = 12
"""Letters of a commit's name."""


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs git, in the repository that `folder` belongs to and no other."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            env={**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise UsageError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{folder}: git did not end within {GIT_SECONDS:g} s") from None


def ask_git(folder: Path, *arguments: str) -> str:
    """What git prints. Raises UsageError if it fails."""
    ended = run_git(folder, *arguments)
    if ended.returncode:
        raise UsageError(f"{folder}: git {arguments[0]}: {clean(ended.stderr)}")
    return ended.stdout.strip()


def find_commits(repository: Path, good: str, bad: str) -> list[str]:
    """The commits from one revision to another, both included, the oldest first.

    Of a merge, only the first parent is followed: what it brought counts as one commit.

    Raises:
        UsageError: this is not a repository, a revision is unknown, or none of the two is
            an ancestor of the other.
    """
    if (
        not repository.is_dir()
        or run_git(repository, "rev-parse", "--git-dir").returncode
    ):
        raise UsageError(f"--git {repository}: is not a git repository")
    ends = [find_commit(repository, "good", good), find_commit(repository, "bad", bad)]
    if ends[0] == ends[1]:
        raise UsageError(f"--good {good} and --bad {bad} are the same commit")
    if not is_ancestor(repository, *ends):
        ends.reverse()  # the failure was mended
        if not is_ancestor(repository, *ends):
            raise UsageError(
                f"--good {good} is not an ancestor of --bad {bad}, nor the other way"
                f" round; give --good \"$(git merge-base '{good}' '{bad}')\""
            )
    command = ("rev-list", "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}")
    return [ends[0], *ask_git(repository, *command).split()]


def find_commit(repository: Path, option: str, revision: str) -> str:
    parse = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    found = run_git(repository, *parse, f"{revision}^{{commit}}")
    if found.returncode:
        raise UsageError(f"--{option} {revision}: {repository} has no such revision")
    return found.stdout.strip()


def is_ancestor(repository: Path, old: str, new: str) -> bool:
    command = ("merge-base", "--is-ancestor", old, new)
    return run_git(repository, *command).returncode == 0


@dataclass
class Commits:
    """The commits of a repository in a clone.

    Attributes:
        ids: the oldest first.
        build: a command line for the shell; None to build nothing.
        folder: of the clone and the environment; is removed afterwards.
    """

    repository: Path
    ids: Sequence[str]
    build: str | None
    folder: Path

    @cached_property
    def names(self) -> list[str]:
        """The short name and the subject of each."""
        log = ("log", "--no-walk=unsorted", "--format=%H %s", *self.ids)
        lines = ask_git(self.repository, *log).split("\n")
        subjects = [(line[:SHORT], line[len(self.ids[0]) :]) for line in lines]
        return [f"{short} ({clean(subject, 60)})" for short, subject in subjects]

    @cached_property
    def clone(self) -> Path:
        """The working tree in which commits are built."""
        clone = self.folder / "repository"
        source = ask_git(self.repository, "rev-parse", "--absolute-git-dir")
        command = ("clone", "--quiet", "--shared", "--no-checkout", source, str(clone))
        ask_git(self.folder, *command)
        return clone

    @property
    def is_alone(self) -> bool:
        """A build installs what it needs."""
        return False

    @property
    def workplace(self) -> Path:
        """The folder in which the program runs."""
        return self.clone

    def prepare(self, number: int, runner: Runner) -> Scratch:
        """The environment with a commit in it, built from a clean tree.

        Raises:
            Untestable: it cannot be checked out or built.
        """
        for command in (
            ("checkout", "--quiet", "--force", "--detach", self.ids[number]),
            ("clean", "--quiet", "-ffdx"),
        ):
            ended = run_git(self.clone, *command)
            if ended.returncode:
                raise Untestable(f"git {command[0]}: {clean(ended.stderr)}")
        scratch = Scratch(self.folder / "environment")
        scratch.make()
        if self.build is not None:
            name = f"build {self.ids[number][:SHORT]}"
            runner.require(name, self.build, self.get_variables(scratch), self.clone)
        return scratch

    def get_variables(self, scratch: Scratch) -> dict[str, str]:
        """Without a build, modules are those of the working tree itself. Folders of the
        user's checkout on PYTHONPATH become those of the clone."""
        own = [str(self.clone)] if self.build is None else []
        variables = scratch.get_variables(own)
        top = run_git(self.repository, "rev-parse", "--show-toplevel").stdout.strip()
        folders = variables["PYTHONPATH"].split(os.pathsep)
        if top:  # a bare repository has none
            folders = [str(move(Path(one), Path(top), self.clone)) for one in folders]
        return {**variables, "PYTHONPATH": os.pathsep.join(folders)}

    def describe(self, number: int) -> list[str]:
        """Author, date and subject of a commit, and the files that it changes."""
        show = ("show", "-m", "--first-parent", "--stat=80", "--stat-count=20")
        form = "--format=commit %H%nAuthor: %an%nDate:   %ad%n%n    %s"
        text = ask_git(self.repository, *show, "--date=iso", form, self.ids[number])
        return text.splitlines()


def move(folder: Path, old: Path, new: Path) -> Path:
    """A folder below `old` as the one below `new`; any other as it is."""
    folder = folder.resolve()
    return new / folder.relative_to(old) if folder.is_relative_to(old) else folder
