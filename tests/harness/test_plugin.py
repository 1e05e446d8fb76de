"""The pytest plugin, in a project of somebody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.harness.cli.pytest_plugin import PROGRAMS
from lockstep.harness.jobs.failures import make_failure, save
from lockstep.harness.jobs.settings import PROFILES
from lockstep.harness.programs.program import Divergence
from tests.harness.building import SMALL, make, update
from tests.harness.commands import ROOT

QUICK, CI = PROFILES["quick"].programs, PROFILES["ci"].programs

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--backend", "--kind", "--profile", "--seed", "--failures"):
        parser.addoption(name, default="theirs")
"""

TESTS = """
import pytest

def test_agrees(lockstep_case, lockstep_check):
    lockstep_check(lockstep_case)

@pytest.mark.parametrize("number", [1])
def test_of_theirs(number, request):
    assert request.config.option.backend == "theirs"
"""

BACKENDS = """
import os
from lockstep.harness.backends import Unavailable
from tests.harness.misbehaving import (
    Cache, correct, declare, one_column_less, shows_nan, wrong_twice
)

def grows_late():
    return declare(Cache, {"step": (4096,)})

def cannot_start():
    with open("started.txt", "a") as file:
        file.write("x")
    raise OSError("no driver")

def is_not_here():
    raise Unavailable("no GPU")

def dies():
    os._exit(3)
"""

HEAVY = ("numpy", "hypothesis", "click", "rich", "jsonschema", "lockstep.harness.workers")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"conftest.py": CONFTEST, "test_x.py": TESTS, "mine.py": BACKENDS}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


ENVIRONMENT = {"COLUMNS": "160", "LOCKSTEP_PROFILE": "quick"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pytest` in a project, with room for long lines."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**inherited, **ENVIRONMENT, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
    )


def choose(*factories: str) -> list[str]:
    return [f"--lockstep-backend=mine:{name}" for name in factories]


def test_where_it_is_not_used_nothing_is_imported(project: Path) -> None:
    (project / "test_x.py").write_text(
        "import sys\n"
        "def test_nothing_is_there(request):\n"
        "    assert request.config.pluginmanager.has_plugin('lockstep')\n"
        f"    assert not {set(HEAVY)!r} & set(sys.modules)\n"
    )
    done = run(project, "-q")
    assert done.returncode == 0, done.stdout
    assert not (project / "failures").exists()


def test_what_is_declared_is_collected_and_a_bug_fails_one_test(project: Path) -> None:
    """And a backend that was asked for and cannot run fails one test, with the reason."""
    backends = choose("shows_nan", "correct", "cannot_start", "dies")
    done = run(project, "-v", *backends, "-n", "2")
    found = re.findall(r"^\[gw\d\].* (\w+) test_x.py::(.*\]) *$", done.stdout, re.M)
    assert sorted(found) == [
        ("FAILED", "test_agrees[mine:cannot_start]"),
        ("FAILED", "test_agrees[mine:dies]"),
        ("FAILED", "test_agrees[mine:shows_nan × kv]"),
        ("PASSED", "test_agrees[mine:correct × kv]"),
        ("PASSED", "test_of_theirs[1]"),
    ]
    assert done.returncode == 1
    start = "FAILED test_x.py::test_agrees[mine:"
    for words in (
        "cannot_start] - Failed: mine:cannot_start: could not be loaded: its factory rai",
        "dies] - Failed: mine:dies: could not be loaded: the process ended with exit sta",
        "shows_nan × kv] - Failed: layer-kv-update-contents: row 0: ",
    ):
        assert f"\n{start}{words}" in done.stdout
    words = "its factory raised OSError: no driver, in cannot_start (mine.py:"
    assert words in " ".join(done.stdout.split())
    assert "→ step 0: update with " in done.stdout
    assert "lockstep replay failures/layer-kv-update-contents/" in done.stdout
    assert (project / "started.txt").read_text() == "x"  # all workers asked it once


def test_what_failed_before_comes_first(project: Path) -> None:
    """And one line says what agrees now."""
    folder, paths = project / "failures", []
    for backend in ("mine:wrong_twice", "mine:correct"):
        program = make(update(5), **SMALL)
        divergence = Divergence("contents", 0, "update", "as it was")
        failure = save(make_failure(folder, program, divergence, backend, {}, {}))
        paths.append(failure.path.relative_to(project))
    (project / "conftest.py").write_text(
        CONFTEST + "from lockstep.harness.cli import pytest_plugin\n"
        "pytest_plugin.PROGRAMS['quick'] = 1\n"
    )
    more = "-n", "2", "-k", "agrees", "--lockstep-seed", "3"
    done = run(project, *choose("wrong_twice", "correct"), *more)
    assert "1 failed, 1 passed" in done.stdout
    assert f"lockstep replay {paths[0]} --backend" in done.stdout
    (said,) = re.findall(r"^mine:.*agrees now.*$", done.stdout, re.M)
    assert said.startswith(f"mine:correct × kv: 1 saved failure agrees now: {paths[1]};")


def test_what_was_not_reached_can_fail_a_test(project: Path) -> None:
    for more, failed in (([], False), (["--lockstep-require-complete"], True)):
        done = run(project, "-k", "agrees", *choose("grows_late"), *more)
        assert (done.returncode != 0) == failed, done.stdout
    assert re.search(r"^FAILED .* cells never reached", done.stdout, re.M)


def test_a_registered_backend_that_is_not_here_is_one_line(project: Path) -> None:
    """But a broken one is an error, whether it was asked for or not."""
    names = {f"mine:{name}": "" for name in ("correct", "is_not_here")}
    with (project / "conftest.py").open("a") as file:
        file.write("from lockstep.harness.workers import registry\n")
        file.write(f"registry.list_names = lambda: {names}\n")
    done = run(project, "-q", "--lockstep-failures", "elsewhere", "-n", "1")
    assert done.returncode == 0, done.stdout
    said = re.findall("^.*: not checked: .*$", done.stdout, re.M)
    assert said == ["mine:is_not_here: not checked: no GPU"]
    assert "2 passed" in done.stdout
    assert "skipped" not in done.stdout
    with (project / "conftest.py").open("a") as file:
        file.write(
            "registry.list_names = lambda: {'mine:dies': '', 'mine:correct': ''}\n"
        )
    done = run(project, "-q")
    assert (done.returncode, "1 failed, 2 passed" in done.stdout) == (1, True)
    assert "mine:dies: could not be loaded" in done.stdout


def test_a_test_can_be_chosen_and_seed_and_profile_count(project: Path) -> None:
    """By its name; the seed and the number of programs are those that were given."""
    (project / "test_x.py").write_text(
        "from lockstep.harness.jobs import check\n"
        "from lockstep.harness.jobs.outcome import Outcome\n"
        "def test_agrees(lockstep_case, lockstep_check, lockstep_pool, monkeypatch):\n"
        "    monkeypatch.setattr(check, 'check_in', lambda pool, outcome: outcome)\n"
        "    monkeypatch.setattr(Outcome, 'get_exit_status', lambda self: 0)\n"
        "    settings = lockstep_check(lockstep_case).settings\n"
        f"    assert (settings.seed, settings.programs) == (7, {CI})\n"
        "    limits = lockstep_pool.limits\n"
        f"    assert limits.probe == str(settings.probe) == {str(project / 'p')!r}\n"
        "    assert (limits.allow_host, limits.rate) == ('h', 5)\n"
    )
    server = "--lockstep-probe=p", "--lockstep-allow-host=h", "--lockstep-rate=5"
    size = ("--lockstep-seed", "7", "--lockstep-profile", "ci", "--seed", "8", *server)
    backends = choose("correct", "one_column_less")
    one = "test_x.py::test_agrees[mine:correct × kv]"
    done = run(project, "-q", one, *backends, *size)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


SETTINGS = """
def test_agrees(lockstep_case, lockstep_check, monkeypatch):
    from lockstep.harness.jobs import check
    from lockstep.harness.jobs.outcome import Outcome
    monkeypatch.setattr(check, "check_in", lambda pool, outcome: outcome)
    monkeypatch.setattr(Outcome, "get_exit_status", lambda self: 0)
    settings = lockstep_check(lockstep_case).settings
    print(settings.programs, settings.failures, *lockstep_case)
"""


def test_the_settings_of_the_project_count(project: Path) -> None:
    """The environment has the profile quick; an option wins over both."""
    (project / "elsewhere").mkdir()
    (project / "mine.py").rename(project / "elsewhere" / "mine.py")
    (project / "test_x.py").write_text(SETTINGS)
    (project / "pyproject.toml").write_text(
        '[tool.lockstep]\nbackends = ["mine:correct"]\nprofile = "nightly"\n'
        'python-path = ["elsewhere"]\nfailures = "found"\n'
    )
    done = run(project, "-q", "-s")
    assert f"{QUICK} found mine:correct kv" in done.stdout, done.stdout
    done = run(project, "-q", "-s", "--lockstep-profile=ci", "--lockstep-failures=f")
    assert f"{CI} f mine:correct kv" in done.stdout, done.stdout
    project.chmod(0o777)
    chosen = "--lockstep-backend=mine:correct", f"--lockstep-python-path={project}"
    (project / "mine.py").write_text(BACKENDS)
    done = run(project, "-q", "-s", *chosen)
    assert f"{QUICK} failures mine:correct kv" in done.stdout, done.stdout
    assert "\npyproject.toml: [tool.lockstep] is not obeyed: every user" in done.stdout
    project.chmod(0o700)
    (project / "pyproject.toml").write_text("[tool.lockstep]\nbackend = []\n")
    done = run(project, "-q")
    words = "pyproject.toml: [tool.lockstep] has no setting backend; did you mean backend"
    assert (words in done.stdout, "Traceback" in done.stdout) == (True, False)


PROFILE = f"""
from hypothesis import settings

def test_agrees(lockstep_case, request):
    options = request.config.option
    assert (options.lockstep_seed, options.lockstep_profile) == (7, "ci")
    assert (settings.default.max_examples, settings.default.derandomize) == ({CI}, True)
"""


def test_the_seed_and_the_profile_of_hypothesis_count(project: Path) -> None:
    (project / "test_x.py").write_text(PROFILE)
    own = "--hypothesis-seed", "7", "--hypothesis-profile", "lockstep-ci"
    done = run(project, "-q", *own, *choose("correct"))
    assert "1 passed" in done.stdout, done.stdout
    done = run(project, "-q", *own, "--lockstep-seed", "8", *choose("correct"))
    assert "assert (8, 'ci') == (7, 'ci')" in done.stdout
    done = run(project, "-q", *own, "--lockstep-profile", "quick", *choose("correct"))
    assert "assert (7, 'quick') == (7, 'ci')" in done.stdout


ENDS = """
def test_ends_once_the_cells_are_explored(lockstep_case, lockstep_check):
    (pair,) = lockstep_check(lockstep_case).pairs
    assert 0 < pair.programs == pair.wanted < 600
"""


def test_the_profiles_are_those_of_check(project: Path) -> None:
    assert {name: profile.programs for name, profile in PROFILES.items()} == PROGRAMS
    (project / "test_x.py").write_text(ENDS)
    done = run(project, "test_x.py", "--lockstep-profile", "ci", *choose("correct"))
    assert "1 passed" in done.stdout, done.stdout


CORRECT = "--lockstep-backend mine:correct"
NO_FOLDER = "choose another folder for failures with --lockstep-failures"
NO_KIND = "mine:correct] - Failed: mine:correct: declares no cache of kind trie or swa"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ("--lockstep-kind kw -n 1", 4, "there is no kind kw; did you"),
        ("--lockstep-backend zz -n 1", 4, "zz: no backend has this name"),
        ("--lockstep-profile slow -n 1", 4, "invalid choice: 'slow'"),
        (f"{CORRECT} --lockstep-failures mine.py", 2, NO_FOLDER),
        (f"{CORRECT} --lockstep-kind trie --lockstep-kind swa", 1, NO_KIND),
    ],
)
def test_what_cannot_run_is_refused(
    project: Path, arguments: str, status: int, words: str
) -> None:
    done = run(project, "-q", *arguments.split())
    said = done.stdout + done.stderr
    assert (done.returncode, words in said) == (status, True), said
    assert "Traceback" not in said and "pytest_plugin.py" not in said
    assert not list(project.glob("failures/*/*"))
