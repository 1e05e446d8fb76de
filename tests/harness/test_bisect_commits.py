"""`lockstep bisect` over commits, and the environments in which it tries them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lockstep.harness.jobs.bisect import scratch
from lockstep.harness.jobs.bisect.scratch import Runner, Untestable, make_environment
from tests.harness.bisecting import (
    AGREES,
    FAILS_TO_IMPORT,
    SHOWS,
    git,
    make_repository,
    write_program,
)
from tests.harness.commands import ROOT, Run, begin, find_processes

BUILD = "echo building; python build.py"
TOY = ("--backend", "toy_cache:make")
ENDS = {11: "change 12", 12: "lose ·[31mtokens"}
"""Number of a commit → its subject: the last that agrees, and the first that does not."""


@pytest.fixture
def repository(tmp_path: Path) -> list[str]:
    """Twenty commits: the 13th breaks the cache, the 10th does not build."""
    files = {f"change {n}": {"toy_cache.py": f"{AGREES}# {n}\n"} for n in range(1, 13)}
    files["change 1"]["build.py"] = "print('built')\n"
    files["change 10"]["build.py"] = "raise SystemExit('error: no compiler for this')\n"
    files["change 11"]["build.py"] = "print('built')\n"
    files["lose \x1b[31mtokens"] = {"toy_cache.py": SHOWS}
    files |= {f"change {n}": {"other": str(n)} for n in range(14, 21)}
    return make_repository(tmp_path / "repo", files)


def test_the_commit_that_broke_it_is_named(
    run_workers: Run,
    tmp_path: Path,
    repository: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build fails in the middle, and the user's checkout stays as it is."""
    write_program(tmp_path)
    checkout = tmp_path / "repo"
    (checkout / "toy_cache.py").write_text("my own work\n")
    before = git(checkout, "status", "--porcelain"), git(checkout, "worktree", "list")
    path = f"{os.environ['PYTHONPATH']}:{checkout}"
    monkeypatch.setenv("PYTHONPATH", path)  # means the clone, not the checkout
    ends = ("--git", "repo", "--good", repository[0], "--bad", "main")
    build = f"{BUILD} && test -z $(git remote)"
    ended = run_workers("bisect", "p.json", *TOY, *ends, "--build", build)
    assert ended.status == 0, ended.words
    good, bad = (f"{repository[at][:12]} ({text})" for at, text in ENDS.items())
    assert f"{bad} broke it: {good} agrees, {bad} shows layer-kv-" in ended.words
    (skipped,) = [line for line in ended.out.splitlines() if ": skipped (" in line]
    assert "(change 10)" in skipped
    assert "exit status 1: error: no compiler for this" in skipped
    assert len(ended.out.splitlines()) <= 9
    after = git(checkout, "status", "--porcelain"), git(checkout, "worktree", "list")
    assert after == before
    assert (checkout / "toy_cache.py").read_text() == "my own work\n"


def test_what_was_mended_is_found_without_a_build(
    run_workers: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round. Modules of the clone come before those of PYTHONPATH."""
    write_program(tmp_path)
    (tmp_path / "toy_cache.py").write_text(FAILS_TO_IMPORT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    commits = {"a": {"toy_cache.py": SHOWS}, "b": {"toy_cache.py": AGREES}}
    make_repository(tmp_path / "repo", commits)
    ends = ("--git", "repo", "--good", "main", "--bad", "main~1")
    ended = run_workers("bisect", "p.json", *TOY, *ends)
    assert ended.status == 0
    assert " (b) mended it: " in ended.words
    assert "(a) shows layer-kv-update-contents" in ended.words
    assert "2 of 2 tried" in ended.words


def test_a_build_that_pushes_does_not_change_the_repository(
    run_workers: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user calls a remote."""
    write_program(tmp_path)
    commits = {"a": {"toy_cache.py": AGREES}, "b": {"toy_cache.py": SHOWS}}
    make_repository(tmp_path / "repo", commits)
    git(tmp_path / "repo", "config", "receive.denyCurrentBranch", "ignore")
    before = git(tmp_path / "repo", "for-each-ref")
    (tmp_path / ".gitconfig").write_text(
        "[clone]\ndefaultRemoteName = upstream\n[push]\ndefault = current\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    pushes = "git push origin HEAD:refs/heads/new; git push upstream HEAD:refs/heads/new"
    build = f"git branch new; git checkout -q -B main; git push -f; {pushes}; true"
    path = f"{os.environ['PYTHONPATH']}:{tmp_path / 'repo'}"
    monkeypatch.setenv("PYTHONPATH", path)
    ends = ("--git", "repo", "--good", "main~1", "--bad", "main")
    ended = run_workers("bisect", "p.json", *TOY, *ends, "--build", build)
    assert (ended.status, "(b) broke it: " in ended.words) == (0, True), ended.words
    assert git(tmp_path / "repo", "for-each-ref") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--git empty --good a --bad b", "--git empty: "),
        ("--git none --good a --bad b", "--git none: is not a git repository"),
        ("--git repo --good nope --bad main", "--git repo: fatal: Needed a single rev"),
        ("--git repo --good main --bad -x", "--git repo: fatal: Needed a single rev"),
        ("--git repo --good main --bad main~0", "neither is an ancestor of the other"),
        ("--git repo --good side --bad main", "neither is an ancestor of the other"),
        ("--git repo --good main", "give --package NAME, or --git REPO with --good and"),
        ("", "give --package NAME, or --git REPO with --good and --bad"),
        ("--git repo --package x", "--package cannot be used with --git"),
        ("--package x --build make", "--package cannot be used with --build"),
        ("--package -r", "--package -r: is not the name of a package"),
        ("--package toy --versions 1", "--versions 1: give two versions, or one: 1"),
        ("--package toy-cache --with a==b=c", "--with a==b=c: "),
        ("--package toy-cache --limit 0", "0.0 is not in the range"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, arguments: str, message: str) -> None:
    write_program(tmp_path)
    (tmp_path / "empty").mkdir()
    if "repo " in arguments:
        make_repository(tmp_path / "repo", {"a": {}, "b": {}})
        git(tmp_path / "repo", "checkout", "-q", "--orphan", "side")
        git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "side")
        git(tmp_path / "repo", "checkout", "-q", "main")
    ended = run("bisect", "p.json", *TOY, *arguments.split())
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.words


def test_ctrl_c_keeps_what_was_learned(tmp_path: Path, repository: list[str]) -> None:
    """And nothing that a build has started outlives it."""
    path, begun = write_program(tmp_path), tmp_path / "begun"
    build = f"if grep -q '# 7' toy_cache.py; then touch {begun}; sleep 77; fi"
    ends = ("--good", repository[0], "--bad", repository[12], "--build", build)
    variables = {"PYTHONPATH": f"{ROOT}:{tmp_path / 'repo'}", "MARK": str(tmp_path)}
    with begin(
        "bisect", path, *TOY, "--git", tmp_path / "repo", *ends, **variables
    ) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    words = " ".join(out.split())
    assert (process.returncode, err.splitlines()[-1]) == (130, "lockstep: stopped")
    assert f"broke it between {repository[0][:12]} (change 1) and" in words
    assert "not tried: 11; 2 of 13 tried (stopped before the end)" in words
    while find_processes(str(tmp_path)):  # those that are killed take a moment to end
        time.sleep(0.05)


def test_a_build_that_takes_too_long_is_skipped(tmp_path: Path) -> None:
    runner = Runner(tmp_path, 0.3)
    with pytest.raises(Untestable, match="build x took longer than"):
        runner.run("build x", "sleep 600 & sleep 600", {"PATH": os.environ["PATH"]})


# --- environments -----------------------------------------------------------------------


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "toy_cache":
            return spec_from_file_location(name, {path!r})

sys.meta_path.append(Finder)
"""
"""What an editable install may put into an environment."""


def test_what_is_installed_comes_before_what_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is a finder, which Python asks last."""
    for name in ("shared", "built"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "toy_cache.py").write_text(f"print({name!r})\n")
    (tmp_path / "shared" / "other.py").write_text("print('other')\n")
    monkeypatch.setattr(scratch, "list_site_folders", lambda: [str(tmp_path / "shared")])
    folder = tmp_path / "environment"
    variables = make_environment(folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    finder = FINDER.format(path=str(tmp_path / "built" / "toy_cache.py"))
    (packages / "_finder.py").write_text(finder)
    (packages / "__editable__.toy.pth").write_text("import _finder\n")
    code = "import toy_cache, other, sys; print(sys.prefix)"
    ended = subprocess.run(
        [folder / "bin" / "python", "-c", code],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.split() == ["built", "other", str(folder)], ended.stderr
