"""Failures on disk: whole, found again, named after what failed; and what differs where
they are replayed."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness import __version__
from lockstep.harness.backends.backend import compare_environments, get_environment
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import LocalFolder
from lockstep.harness.jobs.failures import Failure, Failures, make_failure, save
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import iterate_saved
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.reports.pages.view import read_options, read_saved
from tests.harness.building import make, update
from tests.harness.commands import CORRECT, Run

UPDATE = update(3)
SIGNATURE = "layer-kv-update-contents"
SURROUNDINGS = {"versions": {"numpy": "2.0"}, "device": "cpu"}
FOUND = {"found": {"front": "plain", "seed": 0, "shard": 3}}

DIVERGENCE = Divergence(
    "contents", 1, "update", "row 0 sees too much", {"offset": 2}, {"offset": 3}, (1,)
)


@pytest.fixture
def program() -> Program:
    return make(UPDATE, UPDATE, heads=2)


def keep(folder: Path, program: Program, backend: str = "torch-cpu") -> Failure:
    return save(make_failure(folder, program, DIVERGENCE, backend, SURROUNDINGS, FOUND))


NAMES = (
    *("torch-cpu", "torch:cpu", "torch.cpu", "a.b:c", "a_b:c", "a:b.c"),
    *("exec:./d -x", "exec:./d--x", "exec:./d:-x", "exec-.-d--x", "exec:d", "exec: d"),
)


def test_each_backend_has_a_file(tmp_path: Path, program: Program) -> None:
    """Also if its name differs from another only in characters that file names lack."""
    paths = {keep(tmp_path, program, name).path for name in NAMES}
    found = iterate_saved([tmp_path])
    names = [item.meta["backend"] for _, item in found if isinstance(item, Program)]
    assert sorted(names) == sorted(NAMES)
    assert {path.stem.partition("-")[2] for path in paths} >= {
        *("torch-cpu", "torch.cpu", "a.b-c", "a_b-c", "a-b.c", "exec-d")
    }
    failures = Failures(LocalFolder(tmp_path))
    for name in NAMES:
        failures.add(make_failure(tmp_path, program, DIVERGENCE, name, {}, {}), None)
    assert len(failures.reported) == len(NAMES)


def test_options_that_change_the_verdict_are_kept(
    tmp_path: Path, program: Program
) -> None:
    """In the file, in the line that replays it, and in what reports say of it."""
    settings = Settings(strict=True, step_seconds=0.5, failures=tmp_path)
    options = settings.get_options()
    own = (DIVERGENCE, "exec:./d -x", SURROUNDINGS, FOUND, options)
    failure = save(make_failure(tmp_path, program, *own))
    line = "--backend 'exec:./d -x' --strict --step-time 0.5"
    assert failure.replay == f"lockstep replay {failure.path} {line}"
    ((_, loaded),) = iterate_saved([tmp_path])
    assert isinstance(loaded, Program)
    assert loaded.meta["replay"] == failure.replay
    saved = read_saved(loaded, str(failure.path))
    assert saved.options == options == {"strict": True, "step_time": 0.5}
    odd = {"strict": 1, "step_time": 10**400, "start_time": True, "more": 1}
    assert read_options(odd) == {}


def test_a_failure_is_found_again_and_says_why(tmp_path: Path, program: Program) -> None:
    keep(tmp_path, program)
    failure = keep(tmp_path, program)  # in the place of the first, without a draft
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [failure.path]
    ((path, loaded),) = iterate_saved([tmp_path])
    assert path == failure.path
    assert isinstance(loaded, Program)
    assert (loaded.config, loaded.ops) == (program.config, program.ops)
    assert loaded.digest() == program.digest()
    assert path.parent == tmp_path / SIGNATURE
    assert path.name.startswith(program.digest())
    meta = loaded.meta
    assert "T" in meta["date"]
    said = {
        "signature": SIGNATURE,
        "backend": "torch-cpu",
        **SURROUNDINGS,
        **FOUND,
        "step": 1,
        "what": "row 0 sees too much",
        "expected": {"offset": 2},
        "got": {"offset": 3},
    }
    assert {name: meta[name] for name in said} == said


@pytest.mark.parametrize("folder", ["failures", "my failures; rm x"])
@pytest.mark.parametrize("backend", ["torch-cpu", "my.module:make"])
def test_the_line_that_replays_can_be_pasted_into_a_shell(
    tmp_path: Path, program: Program, folder: str, backend: str
) -> None:
    failure = keep(tmp_path / folder, program, backend)
    line = json.loads(failure.path.read_text())["meta"]["replay"]
    words = ["lockstep", "replay", str(failure.path), "--backend", backend]
    assert shlex.split(line) == words


def test_two_backends_keep_their_failures_apart(tmp_path: Path, program: Program) -> None:
    names = ["a.b:one", "a.b:two", "../../etc", "x/y"]
    paths = {keep(tmp_path, program, name).path for name in names}
    assert len(paths) == 4
    assert {path.parent for path in paths} == {tmp_path / SIGNATURE}
    assert len(list(iterate_saved([tmp_path]))) == 4


def test_backends_whose_files_have_one_name(tmp_path: Path, program: Program) -> None:
    """Both failures are reported, and each line replays on its backend."""
    failures = Failures(LocalFolder(str(tmp_path)))
    for backend in ("mine:make", "mine-make"):
        about = program, DIVERGENCE, backend, SURROUNDINGS, FOUND
        failures.add(make_failure(tmp_path, *about), program.digest())
        failures.write()
    chosen = failures.choose()
    assert [failure.backend for failure in chosen] == ["mine-make", "mine:make"]
    ((path, loaded),) = iterate_saved([tmp_path])
    assert isinstance(loaded, Program) and loaded.digest() == program.digest()
    for failure in chosen:
        assert failure.path == path
        assert failure.replay == f"lockstep replay {path} --backend {failure.backend}"


def test_files_of_a_folder_come_in_order(tmp_path: Path) -> None:
    for count in (3, 1, 2):
        keep(tmp_path, make(*[UPDATE] * count))
    (tmp_path / "more.jsonl").write_text(2 * (json.dumps(make().to_json()) + "\n"))
    (tmp_path / "notes.txt").write_text("not a program")
    paths = [path for path, _ in iterate_saved([tmp_path])]
    assert len(paths) == 5
    assert paths == sorted(paths)


def test_files_that_hold_nothing(tmp_path: Path, program: Program) -> None:
    """A record of nothing does not count; what was run must not look like agreement."""
    (tmp_path / "notes.txt").write_text("{}")
    with pytest.raises(UsageError, match="no program file"):
        list(iterate_saved([tmp_path]))
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "1-1.json").write_bytes(b"{}".ljust(1 << 16))
    keep(tmp_path, program)
    assert len(list(iterate_saved([tmp_path]))) == 1
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    ((where, problem),) = iterate_saved([path])
    assert where == path
    assert isinstance(problem, UsageError)
    assert "empty.jsonl: holds no program" in str(problem)


DECLARED = {"versions": {"torch": "2.13.0"}, "device": "cpu"}
FAILED = Divergence("contents", 0, "update", "row 0 sees too much")


def change(**more: Any) -> dict[str, Any]:
    """The meta of a failure that was found here, but for these."""
    return {"backend": "mine", **get_environment(DECLARED), **more}


def say(**more: Any) -> str | None:
    return compare_environments(change(**more), "mine", get_environment(DECLARED))


def test_what_is_noted() -> None:
    found = get_environment(DECLARED)
    assert found["versions"] == {
        "torch": "2.13.0",
        "python": platform.python_version(),
        "kv-lockstep": __version__,
    }
    assert (found["device"], found["platform"].split()[0]) == ("cpu", platform.system())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (change(), "found with the same versions on the same device"),
        (
            change(versions={"torch": "2.12.0"}, device="cuda"),
            "found with torch 2.12.0, device cuda; here with torch 2.13.0, device cpu",
        ),
        (
            change(versions={"triton": "3.5"}),
            "found with triton 3.5; here with no triton",
        ),
        (change(backend="other"), "found with backend other; here with backend mine"),
        (
            change(platform="Plan9 mips"),
            f"found with platform Plan9 mips; here with platform {platform.system()}"
            f" {platform.machine()}",
        ),
        ({}, None),
        ({"versions": None}, None),
        ({"versions": [1]}, None),
        ({"versions": {"torch": 3}, "device": [], "platform": 1, "backend": {}}, "same"),
        ({"versions": {"torch": "2\x1b[2J\n3"}}, "found with torch 2·[2J 3; here with"),
    ],
)
def test_what_differs_is_said(found: dict[str, Any], words: str | None) -> None:
    said = compare_environments(found, "mine", get_environment(DECLARED))
    assert said == words if words is None else words in str(said)


def test_what_a_file_says_is_bounded() -> None:
    versions = {f"{number}" * 1000: "1" * 100_000 for number in range(1000)}
    assert len(str(say(versions=versions))) < 10_000


def test_a_failure_replays_with_what_differs(run: Run, tmp_path: Path) -> None:
    """It agrees here; it was found with another version."""
    environment = get_environment({"versions": {"numpy": "1.0"}, "device": "tpu"})
    program = make(update(3))
    failure = save(make_failure(tmp_path, program, FAILED, CORRECT, environment, {}))
    ended = run("replay", failure.path, "--backend", CORRECT)
    assert (ended.status, ended.out[:5]) == (0, "FIXED")
    words = "agrees in its one step; found with numpy 1.0, device tpu; here with numpy "
    assert words in ended.text


def test_no_name_of_a_host_or_a_user_is_noted() -> None:
    text = json.dumps(get_environment(DECLARED))
    assert socket.gethostname() not in text
    assert getpass.getuser() not in text


def test_a_folder_that_cannot_be_read_and_one_that_vanishes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that are not seen would count as agreeing."""
    for name in ("closed", "gone"):
        (tmp_path / "found" / name).mkdir(parents=True)
    scan = os.scandir

    def scan_most(folder: Any) -> Any:
        error = {"closed": PermissionError, "gone": FileNotFoundError}
        name = Path(folder).name
        if name in error and name not in readable:
            raise error[name](1, "no", str(folder))
        return scan(folder)

    readable = {"closed"}
    monkeypatch.setattr(os, "scandir", scan_most)
    ended = run("replay", "found", "-b", CORRECT)
    assert "found: no program file (.json, .jsonl) in this folder" in ended.err
    readable.clear()
    ended = run("replay", "found", "-b", CORRECT)
    assert ended.err == "lockstep: found/closed: cannot be read: no\n"
