"""Failures on disk: whole, found again, and named after what failed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import Failure, save
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.files import iterate_saved
from lockstep.harness.programs.program import Program

Make = Callable[..., Program]
UPDATE = {"op": "update", "length": 3}
SIGNATURE = "layer-kv-update-contents"
SURROUNDINGS = {"versions": {"numpy": "2.0"}, "device": "cpu"}
FOUND = {"found": {"front": "plain", "seed": 0, "shard": 3}}

DIVERGENCE = Divergence(
    "contents", 1, "update", "row 0 sees too much", {"offset": 2}, {"offset": 3}, (1,)
)


@pytest.fixture
def program(make: Make) -> Program:
    return make(UPDATE, UPDATE, heads=2)


def keep(folder: Path, program: Program, backend: str = "torch-cpu") -> Failure:
    return save(folder, program, DIVERGENCE, backend, SURROUNDINGS, FOUND)


def test_a_failure_is_found_again(tmp_path: Path, program: Program) -> None:
    failure = keep(tmp_path, program)
    ((path, loaded),) = iterate_saved([tmp_path])
    assert path == failure.path
    assert (loaded.config, loaded.ops) == (program.config, program.ops)
    assert loaded.digest() == program.digest()


def test_what_a_failure_says(tmp_path: Path, program: Program) -> None:
    failure = keep(tmp_path, program)
    assert failure.path.parent == tmp_path / SIGNATURE
    assert failure.path.name.startswith(program.digest())
    meta = json.loads(failure.path.read_text())["meta"]
    assert meta["signature"] == SIGNATURE
    assert meta["backend"] == "torch-cpu"
    assert {name: meta[name] for name in SURROUNDINGS} == SURROUNDINGS
    assert meta["found"] == FOUND["found"]
    assert (meta["step"], meta["what"]) == (1, "row 0 sees too much")
    assert (meta["expected"], meta["got"]) == ({"offset": 2}, {"offset": 3})
    assert "T" in meta["date"]


@pytest.mark.parametrize("folder", ["failures", "my failures; rm x"])
@pytest.mark.parametrize("backend", ["torch-cpu", "my.module:make"])
def test_the_line_that_replays_can_be_pasted_into_a_shell(
    tmp_path: Path, program: Program, folder: str, backend: str
) -> None:
    failure = keep(tmp_path / folder, program, backend)
    line = json.loads(failure.path.read_text())["meta"]["replay"]
    words = ["lockstep", "replay", str(failure.path), "--backend", backend]
    assert shlex.split(line) == words


def test_saving_again_replaces_and_leaves_no_draft(
    tmp_path: Path, program: Program
) -> None:
    keep(tmp_path, program)
    keep(tmp_path, program)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_two_backends_keep_their_failures_apart(tmp_path: Path, program: Program) -> None:
    names = ["a.b:one", "a.b:two", "../../etc", "x/y"]
    paths = {keep(tmp_path, program, name).path for name in names}
    assert len(paths) == 4
    assert {path.parent for path in paths} == {tmp_path / SIGNATURE}
    assert len(list(iterate_saved([tmp_path]))) == 4


def test_files_of_a_folder_come_in_order(tmp_path: Path, make: Make) -> None:
    for count in (3, 1, 2):
        keep(tmp_path, make(*[UPDATE] * count))
    (tmp_path / "more.jsonl").write_text(2 * (json.dumps(make().to_json()) + "\n"))
    (tmp_path / "notes.txt").write_text("not a program")
    paths = [path for path, _ in iterate_saved([tmp_path])]
    assert len(paths) == 5
    assert paths == sorted(paths)


def test_records_of_nothing_do_not_count(tmp_path: Path, program: Program) -> None:
    keep(tmp_path, program)
    running = tmp_path / "running"
    running.mkdir()
    (running / "1-1.json").write_bytes(b"{}".ljust(1 << 16))
    assert len(list(iterate_saved([tmp_path]))) == 1


def test_a_folder_without_programs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("{}")
    with pytest.raises(UsageError, match="no program file"):
        list(iterate_saved([tmp_path]))


def test_a_file_without_programs(tmp_path: Path) -> None:
    """Nothing that was run must not look like all that agrees."""
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    ((where, problem),) = iterate_saved([path])
    assert where == path
    assert isinstance(problem, UsageError)
    assert "empty.jsonl: holds no program" in str(problem)
