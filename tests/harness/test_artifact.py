"""Programs in zips: read in memory, under names of their own; `hostile.zips` has more."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs import files
from lockstep.harness.programs.files import iterate_saved, load_saved
from lockstep.harness.programs.program import Program
from tests.harness.building import SMALL, make, update
from tests.harness.commands import CORRECT, HERE, Run

TEXT = json.dumps(make(update(2), **SMALL).to_json())


def pack(path: Path, *members: tuple[str, str | bytes]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def list_names(path: Path) -> list[str]:
    """Lists the names of files with programs, without the folder of the test."""
    found = iterate_saved([path])
    return [str(name.relative_to(path.parent)) for name, program in found
            if isinstance(program, Program)]  # fmt: skip


def get_refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        list(iterate_saved([path]))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_programs_in_a_zip_are_found_in_order(tmp_path: Path) -> None:
    path = pack(
        tmp_path / "a.zip",
        ("failures/sig/two.json", TEXT),
        ("failures/sig/one.json", TEXT),
        ("all.jsonl", f"{TEXT}\n\n{TEXT}\n"),
        ("more.json.gz", gzip.compress(TEXT.encode())),
        ("report.html", "<p>"),
        ("empty/", ""),
        ("failures/running/1-1.json", "{}" + " " * 100),
        ("running/1-1.json", "{}" + " " * 100),
    )
    before = sorted(tmp_path.rglob("*"))
    assert list_names(path) == [
        "a.zip!all.jsonl:1",
        "a.zip!all.jsonl:3",
        "a.zip!failures/sig/one.json",
        "a.zip!failures/sig/two.json",
        "a.zip!more.json.gz",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.zip", *((f"{number}.json", TEXT) for number in range(5)))
    monkeypatch.setattr(files, "MAX_MEMBERS", 5)
    monkeypatch.setattr(files, "MAX_ARCHIVE", path.stat().st_size)
    monkeypatch.setattr(files, "MAX_UNPACKED", 5 * len(TEXT))
    assert len(list_names(path)) == 5
    monkeypatch.setattr(files, "MAX_UNPACKED", 5 * len(TEXT) - 1)
    assert "would unpack to 0 MiB" in get_refusal(path)
    monkeypatch.setattr(files, "MAX_MEMBERS", 4)
    assert "has more than 4 members" in get_refusal(path)
    monkeypatch.setattr(files, "MAX_ARCHIVE", path.stat().st_size - 1)
    assert "is too large" in get_refusal(path)


def test_a_file_in_a_zip_has_a_name(tmp_path: Path) -> None:
    path = pack(
        tmp_path / "a.zip", ("x/one.json", TEXT), ("x/two.jsonl", f"{TEXT}\n" * 2)
    )
    ((found, _),) = iterate_saved([Path(f"{path}!x/one.json")])
    assert str(found) == f"{path}!x/one.json"
    assert len(load_saved([Path(f"{path}!x/two.jsonl")])) == 2
    for name in ("x/three.json", "x", "", "../a.zip", "/etc/passwd"):
        assert "there is no such file" in get_refusal(Path(f"{path}!{name}"))
    with pytest.raises(UsageError, match=r"b\.zip: there is no such file"):
        load_saved([tmp_path / "b.zip!p.json"])


def test_a_file_that_is_called_like_one_in_a_zip(tmp_path: Path) -> None:
    (tmp_path / "b.zip!p.json").write_text(TEXT)
    assert list_names(tmp_path / "b.zip!p.json") == ["b.zip!p.json"]


def test_one_file_of_a_zip_for_commands_that_take_one(run: Run, tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", ("x/one.json", TEXT), ("x/two.json", TEXT))
    one = run("trace", f"{path}!x/one.json")
    assert (one.status, json.loads(one.out)["expected"][0]["offset"]) == (0, 2)
    both = run("snippet", path, "--backend", "torch-cpu")
    assert (both.status, both.out) == (2, "")
    assert "needs exactly one program, but 2 were given: " in both.err
    assert "without -o DIR" in both.err
    assert f"{path}!x/one.json, {path}!x/two.json" in both.err


LONGER = TEXT.replace('"length": 2', '"length": 3')


@pytest.mark.parametrize("command", ["replay", "show", "shrink", "trace"])
def test_commands_take_files_folders_zips_and_what_is_in_them(
    run: Run, tmp_path: Path, command: str
) -> None:
    """Each program is told by a name that the command takes."""
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "p.json").write_text(TEXT)
    (folder / "two.jsonl").write_text(f"{TEXT}\n\n{LONGER}\n")
    pack(Path("a.zip"), ("x/one.json", TEXT), ("x/two.jsonl", f"{TEXT}\n{LONGER}"))
    backend = () if command == "trace" else ("-b", f"{HERE}:returns_none")

    def count(*paths: str) -> int:
        ended = run(command, *paths, *backend)
        assert ended.status == (1 if command in ("replay", "shrink") else 0)
        words = {"replay": "FAILED", "show": "→ ", "shrink": "✗", "trace": "expected"}
        return ended.out.count(words[command])

    once = command == "show"  # what is the same is shown once
    assert count("some", "a.zip", "some/p.json") == (2 if once else 7)
    some = "a.zip!x/two.jsonl:2", "some/two.jsonl:3", "a.zip!x/one.json"
    assert count(*some) == (2 if once else 3)
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


def test_scripts_of_several_programs_are_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(f"{TEXT}\n\n{LONGER}\n")
    command = "snippet", "two.jsonl", "-b", f"{HERE}:one_column_less", "-o", "scripts"
    ended = run(*command)
    assert (ended.status, ended.err) == (0, "")
    names = ["scripts/1-two.py", "scripts/2-two.py"]
    assert ended.out.split() == names
    assert len({(tmp_path / name).read_text() for name in names}) == 2
    again = run(*command)
    assert (again.status, again.err.count(": exists already; choose")) == (2, 2)


def test_replay_names_each_line_by_what_runs_it_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(f"{TEXT}\n\n{LONGER}\n")
    both = run("replay", "two.jsonl", "--backend", CORRECT, "--json")
    names = [one["path"] for one in json.loads(both.out)["replayed"]]
    assert names == ["two.jsonl:1", "two.jsonl:3"]
    (one,) = json.loads(run("replay", names[1], "-b", CORRECT, "--json").out)["replayed"]
    assert one["path"] == "two.jsonl:3"
    (tmp_path / "two.jsonl:3").write_text("{")  # a file of that name comes first
    assert "is not JSON" in run("replay", "two.jsonl:3", "-b", CORRECT).err


def test_replay_names_each_file_of_a_zip(run: Run, tmp_path: Path) -> None:
    pack(Path("a.zip"), ("x/one.json", TEXT), ("x/two.json", TEXT), ("x/z.json", "{"))
    good = run("replay", "a.zip", "--backend", CORRECT)
    bad = run("replay", "a.zip", "--backend", f"{HERE}:raises")
    assert (good.status, bad.status) == (2, 1)
    words = "agrees in its one step"
    assert good.out.splitlines() == [
        f"AGREES {CORRECT} a.zip!x/one.json: {words}",
        f"AGREES {CORRECT} a.zip!x/two.json: {words}",
    ]
    assert good.err.startswith("lockstep: a.zip!x/z.json: is not JSON")
    assert bad.out.count("FAILED") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
