"""`lockstep vectors`: where it writes, and what `vectors verify` refuses and finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.harness.cli.main import main
from tests.harness.misbehaving import PID_FILE

ROOT = Path(__file__).parents[2]
HERE = "tests.harness.misbehaving"

Run = Callable[..., Result]
Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny set of two kinds."""
    folder = tmp_path_factory.mktemp("vectors") / "set"
    arguments = ["vectors", "-o", str(folder), "--size", "tiny"]
    ended = CliRunner().invoke(main, [*arguments, "--kind", "kv", "--kind", "rotating"])
    assert ended.exit_code == 0, ended.output
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "set"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, in a folder of the test."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(one) for one in arguments])


def say(ended: Result) -> str:
    return " ".join(ended.output.split())


# --- where a set is written -------------------------------------------------------------


def test_a_set_takes_the_place_of_a_former_one(run: Run, folder: Path) -> None:
    ended = run("vectors", "-o", folder, "--size", "tiny", "--kind", "state")
    assert ended.exit_code == 0, ended.output
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.md", "schema.json", "manifest.json", "layer-state.jsonl"}
    assert run("vectors", "verify", folder).exit_code == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("notes.txt", "does not belong to the set"),
        ("a/b.txt", "does not belong to the set"),
        (".hidden", "does not belong to the set"),
    ],
)
def test_foreign_files_are_left_alone(
    run: Run, folder: Path, name: str, words: str
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = read_all(folder)
    ended = run("vectors", "-o", folder, "--size", "tiny", "--kind", "state")
    assert ended.exit_code == 2
    assert words in say(ended)
    assert read_all(folder) == before


def test_a_folder_without_a_set_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.md").write_text("mine")
    ended = run("vectors", "-o", tmp_path / "mine", "--kind", "state")
    assert ended.exit_code == 2
    assert "holds no set of vectors that could be replaced" in say(ended)
    assert read_all(tmp_path) == {"mine/thesis.md": b"mine"}
    ended = run("vectors", "-o", tmp_path / "mine" / "thesis.md")
    assert (ended.exit_code, "is no folder" in say(ended)) == (2, True)


def test_nothing_is_written_through_a_link(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("mine")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(outside)
    ended = run("vectors", "-o", folder, "--size", "tiny", "--kind", "state")
    assert ended.exit_code == 0, ended.output
    assert outside.read_text() == "mine"
    assert not (folder / "README.md").is_symlink()


def test_nothing_is_written_beside_the_folder(run: Run, tmp_path: Path) -> None:
    ended = run(
        "vectors", "-o", tmp_path / "new" / "set", "--size", "tiny", "--kind", "kv"
    )
    assert ended.exit_code == 0, ended.output
    assert {name.split("/")[0] for name in read_all(tmp_path)} == {"new"}
    assert os.listdir(tmp_path / "new") == ["set"]


def read_all(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --- what is no set ---------------------------------------------------------------------


def change_manifest(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def rehash(folder: Path) -> None:
    """The manifest says what is there."""

    def change(document: Any) -> None:
        for name, entry in document["files"].items():
            content = (folder / name).read_bytes()
            entry["bytes"] = len(content)
            entry["sha256"] = hashlib.sha256(content).hexdigest()

    change_manifest(folder, change)


def change_line(folder: Path, change: Callable[[Any], Any], number: int = 0) -> None:
    """One line of the kv file, and its hash."""
    path = folder / "layer-kv.jsonl"
    lines = path.read_text().splitlines()
    document = json.loads(lines[number])
    change(document)
    lines[number] = json.dumps(document)
    path.write_text("\n".join(lines) + "\n")
    rehash(folder)


def cut(folder: Path, count: int) -> None:
    path = folder / "layer-kv.jsonl"
    path.write_bytes(path.read_bytes()[:-count])


def cut_and_rehash(folder: Path) -> None:
    cut(folder, 10)
    rehash(folder)


def cut_a_line(folder: Path) -> None:
    path = folder / "layer-kv.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    rehash(folder)


def rename(folder: Path, name: str) -> None:
    def change(document: Any) -> None:
        document["files"][name] = document["files"].pop("README.md")

    change_manifest(folder, change)


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: shutil.rmtree(f), "manifest.json: there is no such file; a set of"),
        (
            lambda f: (f / "manifest.json").unlink(),
            "manifest.json: there is no such file",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), "is not JSON: "),
        (lambda f: (f / "manifest.json").write_text("[]"), '"format" is null'),
        (lambda f: (f / "manifest.json").write_text(NESTED), "is nested too deeply"),
        (lambda f: (f / "manifest.json").write_bytes(b" " * (5 << 20)), "is too large"),
        (
            lambda f: change_manifest(f, lambda d: d.update(format="lockstep-vectors/2")),
            'this version reads "lockstep-vectors/1"; a newer version of lockstep reads',
        ),
        (
            lambda f: change_manifest(f, lambda d: d.update(format="cache/1")),
            '"format" is "cache/1"; this version reads "lockstep-vectors/1"',
        ),
        (
            lambda f: change_manifest(f, lambda d: d.update(lockstep="99.0")),
            "the set was made by lockstep 99.0, and this is",
        ),
        (
            lambda f: change_manifest(f, lambda d: d.update(lockstep="new")),
            "manifest.json: lockstep: 'new' does not match",
        ),
        (lambda f: rename(f, "../README.md"), "manifest.json: files: '../README.md'"),
        (lambda f: rename(f, "a/README.md"), "manifest.json: files: 'a/README.md'"),
        (lambda f: change_manifest(f, lambda d: d.pop("files")), "'files' is a required"),
        (
            lambda f: (f / "x.jsonl").write_text(""),
            "the manifest does not name this file",
        ),
        (lambda f: (f / "sub").mkdir(), "the manifest does not name this file"),
        (lambda f: (f / "layer-kv.jsonl").unlink(), "layer-kv.jsonl: there is no such"),
        (lambda f: cut(f, 10), "bytes, not"),
        (cut_and_rehash, "its last line has no end; the file may be cut off"),
        (cut_a_line, "programs, not"),
        (
            lambda f: (f / "README.md").write_bytes(
                (f / "README.md").read_bytes().replace(b"Vectors", b"vectorS", 1)
            ),
            "README.md: was changed: its SHA-256 is not the one in the manifest",
        ),
        (
            lambda f: change_line(f, lambda d: d.update(format="lockstep-trace/2")),
            "layer-kv.jsonl:1: format: 'lockstep-trace/1' was expected",
        ),
        (
            lambda f: change_line(
                f, lambda d: d["program"]["config"].update(heads=10**9)
            ),
            "layer-kv.jsonl:1: program/config/heads: 1000000000 is greater than",
        ),
        (
            lambda f: change_line(f, lambda d: d["program"]["ops"][0].update(op="eval")),
            "layer-kv.jsonl:1: program/ops/0/op: 'eval' is not one of",
        ),
        (
            lambda f: change_line(f, lambda d: d["expected"].pop()),
            "answers to",
        ),
        (
            lambda f: change_line(
                f, lambda d: d["program"]["config"].update(kind="rotating", window=4)
            ),
            "is a program of layer rotating; by the manifest the file holds layer kv",
        ),
        (
            lambda f: change_manifest(
                f,
                lambda d: d["files"]["layer-kv.jsonl"]["holds"]["covered"].update(
                    wrapped=["merge"]
                ),
            ),
            "no program reaches wrapped × merge, which the manifest lists",
        ),
        (
            lambda f: change_manifest(
                f, lambda d: d["files"]["layer-kv.jsonl"]["holds"].update(kind="kvv")
            ),
            'there is no kind "layer" "kvv"',
        ),
        (
            lambda f: change_manifest(
                f, lambda d: d["files"]["layer-kv.jsonl"].pop("holds")
            ),
            "says wrongly whether it holds programs",
        ),
    ],
)
def test_what_is_no_set_is_refused(
    run: Run, folder: Path, change: Change, words: str
) -> None:
    change(folder)
    ended = run("vectors", "verify", folder)
    assert ended.exit_code == 2, ended.output
    assert words in say(ended)
    assert "Traceback" not in ended.output


def test_a_link_is_no_file_of_a_set(run: Run, folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "README.md", tmp_path / "README.md")
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    ended = run("vectors", "verify", folder)
    assert ended.exit_code == 2
    assert "README.md: is a link; a set of vectors has none" in say(ended)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("vectors", "give a folder for the set with -o DIR"),
        ("vectors -o x --size huge", "'huge' is not one of"),
        ("vectors -o x --kind kvv", "there is no kind kvv; did you mean kv?"),
        ("vectors -o x --jobs 0", "0 is not in the range"),
        ("vectors -o x verify y", "-o does not go together with another command"),
        ("vectors verify", "Missing argument 'DIR'"),
        ("vectors verify nothing", "manifest.json: there is no such file"),
        ("vectors verify nothing --backend torch-cup", "did you mean torch-cpu"),
        ("vectors export", "No such command 'export'"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, arguments: str, words: str) -> None:
    ended = run(*arguments.split())
    assert ended.exit_code == 2
    assert words in say(ended)
    assert list(tmp_path.iterdir()) == []


# --- what is found ----------------------------------------------------------------------


def test_an_expectation_that_was_changed_is_found(run: Run, folder: Path) -> None:
    def change(document: Any) -> None:
        document["expected"][0]["offset"] += 1

    change_line(folder, change, number=1)
    ended = run("vectors", "verify", folder)
    assert ended.exit_code == 1, ended.output
    words = say(ended)
    assert "layer-kv.jsonl:2 (layer-kv-" in words
    assert "step 0, update with" in words
    assert "the set expects" in words and "the reference" in words
    assert "the reference here expects something else" in words


def test_a_planted_fault_is_found_shrunk_and_saved(run: Run, folder: Path) -> None:
    pytest.importorskip("torch")
    faulty = "lockstep.impl.faults.torch:rotating_chunk_mid_ring"
    ended = run("vectors", "verify", folder, "--backend", faulty, "--jobs", 1)
    assert ended.exit_code == 1, ended.output
    words = say(ended)
    assert (
        "✗ lockstep.impl.faults.torch:rotating_chunk_mid_ring layer-rotating-update"
        in words
    )
    assert "lockstep replay failures/layer-rotating-update" in words
    (saved, *_) = Path("failures").glob("layer-rotating-update-*/*.json")
    assert len(json.loads(saved.read_text())["ops"]) <= 3
    ended = run("replay", saved, "--backend", faulty)
    assert (ended.exit_code, "FAILED" in ended.output) == (1, True)


def test_a_backend_that_agrees(run: Run, folder: Path) -> None:
    """What it does not declare is counted, and why is said. Most programs are of another
    dtype or of other sizes, which change no answer: it has float32 alone."""
    arguments = ("verify", folder, "--backend", f"{HERE}:correct", "--jobs", 1)
    ended = run("vectors", *arguments, "--json")
    assert ended.exit_code == 0, ended.output
    outcome = json.loads(ended.stdout)
    (pair,) = outcome["pairs"]
    assert (pair["kind"], pair["diverged"], pair["known"], pair["crashed"]) == (
        *("kv", 0),
        *(0, 0),
    )
    assert pair["agreed"] > 0
    held = (folder / "layer-kv.jsonl").read_text().count("\n")
    assert pair["agreed"] + sum(pair["not_declared"].values()) == held
    assert any("does not declare" in why for why in pair["not_declared"])
    assert not any("dtype" in why for why in pair["not_declared"])
    ended = run("vectors", *arguments)
    assert "all agree" in say(ended)


def test_what_is_not_written_does_not_agree(run: Run, folder: Path) -> None:
    """Of `trim`, so no program with one that is run counts as one that agrees."""
    arguments = ("verify", folder, "--backend", f"{HERE}:has_no_trim_yet", "--jobs", 1)
    ended = run("vectors", *arguments, "--json")
    assert ended.exit_code == 2, ended.output
    (pair,) = json.loads(ended.stdout)["pairs"]
    assert list(pair["missing"].values()) == ["trim"]
    lines = (folder / "layer-kv.jsonl").read_text().splitlines()
    ops = [[op["op"] for op in json.loads(line)["program"]["ops"]] for line in lines]
    assert 0 < pair["agreed"] <= sum("trim" not in names for names in ops)
    assert pair["agreed"] + sum(pair["not_declared"].values()) < len(lines)
    ended = run("vectors", *arguments)
    assert "unfinished" in say(ended)
    assert "all agree" not in say(ended)


def test_a_crash_does_not_take_the_others_along(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PID_FILE, str(tmp_path / "mark"))
    arguments = ("verify", folder, "--backend", f"{HERE}:dies_once", "--jobs", 1)
    ended = run("vectors", *arguments, "--json")
    assert ended.exit_code == 2, ended.output
    (pair,) = json.loads(ended.stdout)["pairs"]
    held = (folder / "layer-kv.jsonl").read_text().count("\n")
    assert pair["crashed"] == 1
    assert [one["signature"] for one in pair["failures"]] == ["layer-kv-update-crash"]
    assert pair["agreed"] + 1 + sum(pair["not_declared"].values()) == held
    assert pair["agreed"] > 0


def test_a_backend_without_these_kinds(run: Run, tmp_path: Path) -> None:
    kind = ("--kind", "encoder", "--size", "tiny")
    assert run("vectors", "-o", tmp_path / "set", *kind).exit_code == 0
    ended = run("vectors", "verify", "set", "--backend", f"{HERE}:correct")
    assert ended.exit_code == 2
    assert "nothing was run" in say(ended)
    ended = run("vectors", "verify", "set", "--backend", f"{HERE}:factory_raises")
    assert (ended.exit_code, "its factory raised" in say(ended)) == (2, True)
