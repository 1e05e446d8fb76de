"""Settings in pyproject.toml, in the environment, and as options: the last one wins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.jobs.settings import PROFILES
from tests.harness.commands import CORRECT, HERE, Ended, Run

WRONG = f"{HERE}:one_column_less"
PROGRAM = """{"format": "lockstep/1", "contract": "layer",
"config": {"kind": "kv", "step": 1, "conv_width": 2},
"ops": [{"op": "update", "length": 2}], "meta": {"backend": "BACKEND"}}"""


def write(folder: Path, *lines: str) -> None:
    text = "\n".join(["[project]", 'name = "mine"', "[tool.lockstep]", *lines])
    (folder / "pyproject.toml").write_text(text)


def write_program(folder: Path, backend: str) -> None:
    (folder / "p.json").write_text(PROGRAM.replace("BACKEND", backend))


def count_programs(ended: Ended) -> int:
    """How many programs a check has run, as its last line says."""
    (ran,) = re.findall(r": ([\d,]+) programs, [\d,]+ steps in ", ended.words)
    return int(ran.replace(",", ""))


def test_a_check_takes_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder below, where the folder of failures is the same."""
    write(
        tmp_path,
        f'backends = ["{WRONG}"]',
        'kinds = ["kv"]',
        'profile = "quick"',
        'failures = "found/here"',
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    ended = run("check")
    assert ended.status == 1
    assert count_programs(ended) == PROFILES["quick"].programs
    assert "lockstep replay ../found/here/layer-kv-" in ended.out
    assert [*(tmp_path / "found" / "here").glob("*/*.json")]


def test_an_option_wins_over_the_environment_and_that_over_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, f'backends = ["{WRONG}"]', 'profile = "ci"', 'failures = "a"')
    monkeypatch.setenv("LOCKSTEP_BACKENDS", f" {CORRECT} ,")
    monkeypatch.setenv("LOCKSTEP_PROFILE", "quick")
    monkeypatch.setenv("LOCKSTEP_FAILURES", "b")
    ended = run("check", "--failures", "c")
    assert (ended.status, count_programs(ended)) == (0, PROFILES["quick"].programs)
    assert f"{CORRECT} × kv" in ended.words
    assert (tmp_path / "c" / "outcome.json").exists()
    ended = run("check", "-b", WRONG, "-k", "kv", "-j", 1, "--profile", "ci")
    assert ended.status == 1 and count_programs(ended) > PROFILES["quick"].programs
    assert (tmp_path / "b" / "outcome.json").exists()
    assert not (tmp_path / "a").exists()


def test_a_list_of_the_environment_may_have_several(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_BACKENDS", f"{CORRECT},{WRONG}")
    monkeypatch.setenv("LOCKSTEP_KINDS", "kv")
    ended = run("check", "--programs", 5)
    assert f"{CORRECT} × kv" in ended.words
    assert f"{WRONG} × kv" in ended.words


def test_backends_are_imported_from_the_python_path(
    run_workers: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "own_cache.py").write_text(f"from {HERE} import correct as make")
    check = "check", "-b", "own_cache:make", "--programs", 5
    assert "there is no module own_cache" in run_workers(*check).words
    assert run_workers(*check, "--python-path", "src").status == 0
    write(tmp_path, 'python-path = ["src"]')
    assert run_workers(*check).status == 0
    monkeypatch.setenv("LOCKSTEP_PYTHON_PATH", "nowhere")
    ended = run_workers(*check)
    assert ended.err == "lockstep: LOCKSTEP_PYTHON_PATH: nowhere is not a folder\n"


@pytest.mark.parametrize("command", ["replay", "show", "shrink", "report", "snippet"])
def test_a_file_may_name_a_backend_of_the_settings(
    run: Run, tmp_path: Path, command: str
) -> None:
    """And none that they do not name: another would be no answer to its question."""
    folder = tmp_path / "failures"
    folder.mkdir()
    more = ("-o", "page") if command == "report" else ()

    def play(named: str) -> str:
        write_program(folder, named)
        return tell(run(command, folder / "p.json", *more), tmp_path)

    without = play(WRONG)
    write(tmp_path, f'backends = ["{CORRECT}", "{WRONG}"]')
    own, other = play(WRONG), play("imported.never:make")
    assert "no registered backend" in without
    assert "no registered backend" not in own
    assert "no registered backend" in other


def test_a_file_that_names_none_runs_on_the_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        PROGRAM.replace(', "meta": {"backend": "BACKEND"}', "")
    )
    write(tmp_path, f'backends = ["{WRONG}", "{CORRECT}"]')
    assert run("replay", "p.json").out.startswith(f"FAILED {WRONG} p.json")


def tell(ended: Ended, folder: Path) -> str:
    """What a command has said and written."""
    page = folder / "page" / "report.html"
    return ended.words + (page.read_text() if page.exists() else "")


REFUSED = (
    "backend = []",
    'kinds = ["roating"]',
    'kinds = "kv"',
    "kinds = [1]",
    'profile = "cj"',
    "profile = 3",
    'failures = ""',
    'backends = ["zz"]',
    'python-path = ["no"]',
)


def test_what_is_refused(run: Run, tmp_path: Path, snapshot: Any) -> None:
    """By each command with the same line."""
    write_program(tmp_path, CORRECT)
    reasons = {}
    for line in REFUSED:
        write(tmp_path, line)
        for command in ("check", "backends", "replay p.json"):
            ended = run(*command.split())
            assert (ended.status, ended.out) == (2, "")
            assert reasons.setdefault(line, ended.err) == ended.err
    assert reasons == snapshot
    write(tmp_path, "deep = " + "[" * 20_000)
    assert run("check").err.startswith("lockstep: pyproject.toml: is not TOML: ")
    write(tmp_path, "deep = " + "9" * 5000)
    assert run("check").err.startswith("lockstep: pyproject.toml: is not TOML: ")
    write(tmp_path, 'failures = "a\\u0000b"')
    assert 'failures: "a\\u0000b" has a NUL character' in run("check").err


def test_another_table_is_nothing_of_ours(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("tool = 3")
    assert run("check", "-b", CORRECT, "--programs", 5).status == 0
    (tmp_path / "pyproject.toml").write_text("[tool]\nlockstep = 1")
    ended = run("check", "-b", CORRECT, "--programs", 5)
    assert ended.err == "lockstep: pyproject.toml: [tool.lockstep] is 1, not a table\n"


def test_backends_says_where_a_setting_is_from(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run("backends", "-b", "reference")
    assert "no settings: [tool.lockstep] in pyproject.toml can have" in ended.out
    write(tmp_path, f'backends = ["{WRONG}"]', 'profile = "ci"')
    monkeypatch.setenv("LOCKSTEP_PROFILE", "quick")
    ended = run("backends")
    lines = ended.out.splitlines()
    assert f'  backends = ["{WRONG}"] (pyproject.toml)' in lines
    assert '  profile = "quick" (LOCKSTEP_PROFILE)' in lines
    assert any(line.startswith(f"{WRONG} on cpu") for line in lines)


# --- whose settings they are ------------------------------------------------------------


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a path belong to another user than the process."""
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


def check_below(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """A check in a folder below; without settings, it names its backend itself."""
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    return run("check", "-b", CORRECT, "-k", "kv", "--programs", 5)


def expect_ignored(ended: Ended, why: str) -> None:
    assert ended.status == 0
    assert ended.err == (
        f"lockstep: ../pyproject.toml: [tool.lockstep] is not obeyed: {why};"
        " use options or LOCKSTEP_ variables\n"
    )
    assert not Path("../elsewhere").exists()


@pytest.mark.parametrize("name", [".", "pyproject.toml"])
def test_those_of_another_user_are_not_obeyed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, 'failures = "elsewhere"')
    give_away(tmp_path / name, monkeypatch)
    ended = check_below(run, tmp_path, monkeypatch)
    if os.geteuid() == 0:
        path = tmp_path if name == "." else "../pyproject.toml"
        expect_ignored(ended, f"{path} belongs to another user (uid 4242)")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", [".", "pyproject.toml"])
def test_those_that_everybody_can_write_are_not_obeyed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, 'failures = "elsewhere"')
    (tmp_path / name).chmod(0o777)
    path = tmp_path if name == "." else "../pyproject.toml"
    ended = check_below(run, tmp_path, monkeypatch)
    expect_ignored(ended, f"every user can write to {path}")


def test_the_search_ends_at_the_root_of_a_repository(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submodule has a file `.git`. What is invalid behind the end is no error."""
    write(tmp_path, 'failures = "elsewhere"')
    below = tmp_path / "below"
    below.mkdir()
    (below / ".git").write_text("gitdir: somewhere")
    monkeypatch.chdir(below)
    command = "check", "-b", CORRECT, "-k", "kv", "--programs", 5
    why = f"the search ends at the root of the repository, {below}"
    expect_ignored(run(*command), why)
    write(tmp_path, "unknown = 3")
    assert (run(*command).status, run(*command).err) == (0, "")
    write(below, 'failures = "own"')
    run(*command)
    assert (below / "own" / "outcome.json").exists()


def test_a_driver_of_a_foreign_folder_is_not_started(
    run_workers: Run, tmp_path: Path
) -> None:
    """A file and the settings next to it would make the command start a driver."""
    mark = tmp_path / "started"
    driver = f"exec:touch {mark}"
    write(tmp_path, f'backends = ["{driver}"]')
    write_program(tmp_path, driver)
    run_workers("replay", "p.json", "--start-time", 5)
    assert mark.exists()
    mark.unlink()
    tmp_path.chmod(0o777)
    ended = run_workers("replay", "p.json", "--start-time", 5)
    assert ended.status == 2 and "names no registered backend" in ended.err
    assert "[tool.lockstep] is not obeyed" in ended.err
    assert not mark.exists()
