"""Programs in zips: read in memory, under names of their own, and what is odd refused."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZipFile, ZipInfo

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.core.document import MAX_BYTES
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs import artifact
from lockstep.harness.programs.files import iterate_saved, load_saved
from lockstep.harness.programs.program import Program

ROOT = Path(__file__).parents[2]
TEXT = json.dumps(
    {
        "format": "lockstep/1",
        "contract": "layer",
        "config": {"kind": "kv", "step": 1, "conv_width": 2},
        "ops": [{"op": "update", "length": 2}],
    }
)


def pack(
    path: Path, *members: tuple[str | ZipInfo, str | bytes], how: int = ZIP_DEFLATED
) -> Path:
    with ZipFile(path, "w", how) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def list_names(path: Path) -> list[str]:
    """What the files with programs are called, without the folder of the test."""
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
        "a.zip!all.jsonl",
        "a.zip!all.jsonl",
        "a.zip!failures/sig/one.json",
        "a.zip!failures/sig/two.json",
        "a.zip!more.json.gz",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_one_bad_member_stands_among_good_ones(tmp_path: Path) -> None:
    large = " " * (MAX_BYTES + 1)
    path = pack(
        tmp_path / "a.zip",
        ("a.json", TEXT),
        ("b.json", "{"),
        ("c.json", large),
        ("d.json.gz", gzip.compress(large.encode())),
    )
    found = {name.name: program for name, program in iterate_saved([path])}
    assert isinstance(found.pop("a.zip!a.json"), Program)
    words = {name: str(error).partition(": ")[2] for name, error in found.items()}
    assert words["a.zip!b.json"].startswith("is not JSON")
    assert words["a.zip!c.json"] == words["a.zip!d.json.gz"]
    assert words["a.zip!c.json"] == "is too large; at most 8 MiB"


def test_a_member_whose_bytes_were_changed(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", ("a.json", TEXT), how=0)
    path.write_bytes(path.read_bytes().replace(b"update", b"updote"))
    ((_, error),) = iterate_saved([path])
    assert "a.zip!a.json: cannot be read: Bad CRC-32" in str(error)


def test_a_zip_without_programs(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", ("report.html", "<p>"))
    assert "no program file (.json, .jsonl) in this zip" in get_refusal(path)
    assert "there is no such file" in get_refusal(tmp_path / "b.zip")
    (tmp_path / "c.zip").write_text(TEXT)
    assert "cannot be read as a zip: File is not a zip" in get_refusal(tmp_path / "c.zip")


@pytest.mark.parametrize(
    "name", ["../a.json", "/a.json", "a/../../b.json", "..", "C:\\a.json", "a\\b.json"]
)
def test_a_member_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / "a.zip", ("good.json", TEXT), (name, TEXT))
    assert "would lie outside of its folder" in get_refusal(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_a_member_that_is_no_file(tmp_path: Path, kind: int) -> None:
    member = ZipInfo("a.json")
    member.external_attr = (kind | 0o777) << 16
    path = pack(tmp_path / "a.zip", (member, "/etc/passwd"))
    assert "'a.json' is a link or a device, not a file" in get_refusal(path)


@pytest.mark.parametrize("how", [ZIP_BZIP2, ZIP_LZMA])
def test_a_packing_that_cannot_be_bounded(tmp_path: Path, how: int) -> None:
    path = pack(tmp_path / "a.zip", ("a.json", TEXT), how=how)
    assert "is packed in another way than by deflate" in get_refusal(path)


@pytest.mark.parametrize("names", [("a.json", "a.json"), ("a.json", "./a.json")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name(tmp_path: Path, names: Iterable[str]) -> None:
    path = pack(tmp_path / "a.zip", *((name, TEXT) for name in names))
    assert "has two members of one name" in get_refusal(path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.zip", *((f"{number}.json", TEXT) for number in range(5)))
    monkeypatch.setattr(artifact, "MAX_MEMBERS", 5)
    monkeypatch.setattr(artifact, "MAX_ARCHIVE", path.stat().st_size)
    monkeypatch.setattr(artifact, "MAX_UNPACKED", 5 * len(TEXT))
    assert len(list_names(path)) == 5
    monkeypatch.setattr(artifact, "MAX_UNPACKED", 5 * len(TEXT) - 1)
    assert "would unpack to 0 MiB" in get_refusal(path)
    monkeypatch.setattr(artifact, "MAX_MEMBERS", 4)
    assert "has more than 4 members" in get_refusal(path)
    monkeypatch.setattr(artifact, "MAX_ARCHIVE", path.stat().st_size - 1)
    assert "is too large" in get_refusal(path)


def patch(archive: ZipFile, change: Callable[[ZipInfo], None]) -> None:
    """Changes what the directory says of the first member."""
    change(archive.filelist[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m, "file_size", 10 << 30), "would unpack to 10,240 MiB"),
        (lambda m: setattr(m, "flag_bits", 1), "is encrypted"),
        (lambda m: setattr(m, "compress_size", 300), "'a.json' and 'b.json' overlap"),
        (lambda m: setattr(m, "filename", ""), "its member '' has no name"),
    ],
)
def test_what_the_directory_of_a_zip_claims(
    tmp_path: Path, change: Callable[[ZipInfo], None], words: str
) -> None:
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("a.json", TEXT)
        archive.writestr("b.json", TEXT)
        patch(archive, change)
    path = tmp_path / "a.zip"
    path.write_bytes(buffer.getvalue())
    # Some Pythons find overlaps themselves, when a member is read.
    assert words in get_refusal(path)


def test_a_file_in_a_zip_has_a_name(tmp_path: Path) -> None:
    path = pack(
        tmp_path / "a.zip", ("x/one.json", TEXT), ("x/two.jsonl", f"{TEXT}\n" * 2)
    )
    ((found, _),) = iterate_saved([Path(f"{path}!x/one.json")])
    assert str(found) == f"{path}!x/one.json"
    assert len(load_saved(Path(f"{path}!x/two.jsonl"))) == 2
    for name in ("x/three.json", "x", "", "../a.zip", "/etc/passwd"):
        assert "there is no such file" in get_refusal(Path(f"{path}!{name}"))
    with pytest.raises(UsageError, match=r"b\.zip: there is no such file"):
        load_saved(tmp_path / "b.zip!p.json")


def test_a_file_that_is_called_like_one_in_a_zip(tmp_path: Path) -> None:
    (tmp_path / "b.zip!p.json").write_text(TEXT)
    assert list_names(tmp_path / "b.zip!p.json") == ["b.zip!p.json"]


def test_one_file_of_a_zip_for_commands_that_take_one(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", ("x/one.json", TEXT), ("x/two.json", TEXT))
    one = CliRunner().invoke(main, ["trace", f"{path}!x/one.json"])
    assert (one.exit_code, json.loads(one.stdout)["expected"][0]["offset"]) == (0, 2)
    both = CliRunner().invoke(main, ["snippet", str(path), "--backend", "torch-cpu"])
    assert (both.exit_code, both.stdout) == (2, "")
    assert "a.zip: holds 2 programs; give one" in both.stderr


def test_replay_names_each_file_of_a_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pack(Path("a.zip"), ("x/one.json", TEXT), ("x/two.json", TEXT), ("x/z.json", "{"))
    correct, wrong = (f"tests.harness.misbehaving:{n}" for n in ("correct", "raises"))
    good, bad = (
        CliRunner().invoke(main, ["replay", "a.zip", "--backend", name])
        for name in (correct, wrong)
    )
    assert (good.exit_code, bad.exit_code) == (2, 1)
    words = "agrees in its one step"
    assert good.stdout.splitlines() == [
        f"FIXED {correct} a.zip!x/one.json: {words}",
        f"FIXED {correct} a.zip!x/two.json: {words}",
    ]
    assert good.stderr.startswith("lockstep: a.zip!x/z.json: is not JSON")
    assert bad.stdout.count("FAILED") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
