"""Commands that take files and folders of programs, and lines of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.building import SMALL, make, update
from tests.harness.commands import CORRECT, HERE, Run

TEXT = json.dumps(make(update(2), **SMALL).to_json())


LONGER = TEXT.replace('"length": 2', '"length": 3')


@pytest.mark.parametrize("command", ["replay", "show", "shrink", "trace"])
def test_commands_take_files_folders_and_lines(
    run: Run, tmp_path: Path, command: str
) -> None:
    """Each program is told by a name that the command takes."""
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "p.json").write_text(TEXT)
    (folder / "two.jsonl").write_text(f"{TEXT}\n\n{LONGER}\n")
    backend = () if command == "trace" else ("-b", f"{HERE}:returns_none")

    def count(*paths: str) -> int:
        ended = run(command, *paths, *backend)
        assert ended.status == (1 if command in ("replay", "shrink") else 0)
        words = {"replay": "FAILED", "show": "→ ", "shrink": "✗", "trace": "expected"}
        return ended.out.count(words[command])

    once = command == "show"  # what is the same is shown once
    assert count("some", "some/p.json") == (2 if once else 4)
    assert count("some/two.jsonl:1", "some/two.jsonl:3") == 2
    (tmp_path / "broken.json").write_text("{")
    ended = run(command, "broken.json", *backend)
    assert (ended.status, ended.out.strip()) == (2, "")
    assert "broken.json: is not JSON" in ended.err


def test_one_that_cannot_be_shrunk_stops_no_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(TEXT)
    for name in ("b", "c"):
        named = {**json.loads(TEXT), "meta": {"backend": "reference"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(named))
    ended = run("shrink", "b.json", "a.json", "c.json")
    assert ended.status == 2
    assert "a.json: names no registered backend" in ended.err
    assert ended.out.count("agrees with the reference: nothing to shrink") == 2


def test_replay_names_each_line_by_what_runs_it_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(f"{TEXT}\n\n{LONGER}\n")
    both = run("replay", "two.jsonl", "--backend", CORRECT, "--json")
    names = [one["path"] for one in json.loads(both.out)["replayed"]]
    assert names == ["two.jsonl:1", "two.jsonl:3"]
    (one,) = json.loads(run("replay", names[1], "-b", CORRECT, "--json").out)["replayed"]
    assert one["path"] == "two.jsonl:3"
    (tmp_path / "two.jsonl:3").write_text("{")  # a file of that name comes first
    assert "is not JSON" in run("replay", "two.jsonl:3", "-b", CORRECT).err
