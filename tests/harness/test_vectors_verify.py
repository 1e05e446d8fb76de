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

from tests.harness.commands import CORRECT, HERE, Ended, Run, invoke
from tests.harness.misbehaving import PID_FILE

Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny set of two kinds."""
    folder = tmp_path_factory.mktemp("vectors") / "set"
    kinds = ("--kind", "kv", "--kind", "rotating")
    ended = invoke("vectors", "-o", folder, "--size", "tiny", *kinds)
    assert ended.status == 0, ended.text
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "set"))


def export(run: Run, folder: Path, kind: str = "state") -> Ended:
    return run("vectors", "-o", folder, "--size", "tiny", "--kind", kind)


# --- where a set is written -------------------------------------------------------------


def test_a_set_replaces_a_former_one(run: Run, folder: Path, tmp_path: Path) -> None:
    """Nothing is written through a link, or beside the folder."""
    outside = tmp_path / "outside.md"
    outside.write_text("mine")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(outside)
    ended = export(run, folder)
    assert ended.status == 0, ended.text
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.md", "schema.json", "manifest.json", "layer-state.jsonl"}
    assert run("vectors", "verify", folder).status == 0
    assert outside.read_text() == "mine"
    assert not (folder / "README.md").is_symlink()
    assert {*os.listdir(tmp_path)} == {"outside.md", "set"}


@pytest.mark.parametrize("name", ["notes.txt", "a/b.txt", ".hidden"])
def test_foreign_files_are_left_alone(run: Run, folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = read_all(folder)
    ended = export(run, folder)
    assert (ended.status, "does not belong to the set" in ended.words) == (2, True)
    assert read_all(folder) == before


def test_a_folder_without_a_set_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.md").write_text("mine")
    ended = export(run, tmp_path / "mine")
    assert ended.status == 2
    assert "holds no set of vectors that could be replaced" in ended.words
    assert read_all(tmp_path) == {"mine/thesis.md": b"mine"}
    ended = export(run, tmp_path / "mine" / "thesis.md")
    assert (ended.status, "is not a folder" in ended.words) == (2, True)


def test_nothing_is_left_beside_a_new_folder(run: Run, tmp_path: Path) -> None:
    ended = export(run, tmp_path / "new" / "set", "kv")
    assert ended.status == 0, ended.text
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(tmp_path / "new") == ["set"]


def read_all(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --- what is no set ---------------------------------------------------------------------


def manifest(change: Callable[[Any], Any]) -> Change:
    """Changes the manifest."""

    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return damage


def holds(change: Callable[[Any], Any]) -> Change:
    """Changes what the manifest says of the kv file."""
    return manifest(lambda document: change(document["files"]["layer-kv.jsonl"]))


def rehash(folder: Path) -> None:
    """The manifest says what is there."""

    def change(document: Any) -> None:
        for name, entry in document["files"].items():
            content = (folder / name).read_bytes()
            entry["bytes"] = len(content)
            entry["sha256"] = hashlib.sha256(content).hexdigest()

    manifest(change)(folder)


def line(change: Callable[[Any], Any], number: int = 0) -> Change:
    """Changes one line of the kv file, and its hash."""

    def damage(folder: Path) -> None:
        path = folder / "layer-kv.jsonl"
        lines = path.read_text().splitlines()
        document = json.loads(lines[number])
        change(document)
        lines[number] = json.dumps(document)
        path.write_text("\n".join(lines) + "\n")
        rehash(folder)

    return damage


def put(**fields: Any) -> Change:
    """Other fields at the top of the manifest."""
    return manifest(lambda document: document.update(fields))


def put_config(**fields: Any) -> Change:
    return line(lambda document: document["program"]["config"].update(fields))


def cut(count: int, then: Change = lambda _: None) -> Change:
    """Takes bytes from the end of the kv file."""

    def damage(folder: Path) -> None:
        path = folder / "layer-kv.jsonl"
        path.write_bytes(path.read_bytes()[:-count])
        then(folder)

    return damage


def cut_a_line(folder: Path) -> None:
    path = folder / "layer-kv.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    rehash(folder)


def change_a_letter(folder: Path) -> None:
    path = folder / "README.md"
    path.write_bytes(path.read_bytes().replace(b"Vectors", b"vectorS", 1))


NEWER = 'reads "lockstep-vectors/1"; a newer version of lockstep reads'
OTHER = "is a program of layer rotating; by the manifest the file holds layer kv"
COVERED = "no program reaches wrapped × merge, which the manifest lists"
KV = "layer-kv.jsonl:1:"
DAMAGED = [
    (shutil.rmtree, "manifest.json: there is no such file; a set of"),
    (put(format="lockstep-vectors/2"), NEWER),
    (put(format="cache/1"), '"format" is "cache/1"; this version reads'),
    (put(lockstep="99.0"), "the set was made by lockstep 99.0, and this is"),
    (put(lockstep="new"), "manifest.json: lockstep: 'new' does not match"),
    (put(files={"a/b.md": {}}), "manifest.json: files: 'a/b.md'"),
    (manifest(lambda d: d.pop("files")), "'files' is a required"),
    (lambda f: (f / "sub").mkdir(), "the manifest does not name this file"),
    (lambda f: (f / "layer-kv.jsonl").unlink(), "layer-kv.jsonl: there is no such"),
    (cut(10), "bytes, not"),
    (cut(10, rehash), "its last line has no end; the file may be cut off"),
    (cut_a_line, "programs, not"),
    (change_a_letter, "README.md: was changed: its SHA-256 is not the one in the man"),
    (line(lambda d: d.update(format="x")), f"{KV} format: 'lockstep-trace/1' was exp"),
    (put_config(heads=10**9), f"{KV} program/config/heads: 1000000000 is greater than"),
    (
        line(lambda d: d["program"]["ops"][0].update(op="eval")),
        f"{KV} program/ops/0/op: 'eval' is not one of",
    ),
    (line(lambda d: d["expected"].pop()), "answers to"),
    (put_config(kind="rotating", window=4), OTHER),
    (holds(lambda file: file["holds"]["covered"].update(wrapped=["merge"])), COVERED),
    (holds(lambda file: file["holds"].update(kind="kvv")), 'no kind "layer" "kvv"'),
    (holds(lambda file: file.pop("holds")), "says wrongly whether it holds programs"),
]
"""More is in `hostile.sets`."""


@pytest.mark.parametrize(("change", "words"), DAMAGED)
def test_a_damaged_set_is_refused(
    run: Run, folder: Path, change: Change, words: str
) -> None:
    change(folder)
    ended = run("vectors", "verify", folder)
    assert (ended.status, words in ended.words) == (2, True), ended.text
    assert "Traceback" not in ended.text


# --- what is found ----------------------------------------------------------------------


def test_an_expectation_that_was_changed_is_found(run: Run, folder: Path) -> None:
    def change(document: Any) -> None:
        document["expected"][0]["offset"] += 1

    line(change, number=1)(folder)
    ended = run("vectors", "verify", folder)
    assert ended.status == 1, ended.text
    assert "layer-kv.jsonl:2 (layer-kv-" in ended.words
    assert "step 0, update with" in ended.words
    assert "the set expects" in ended.words and "the reference" in ended.words
    assert "the reference here expects something else" in ended.words


def test_a_planted_fault_is_found_shrunk_and_saved(run: Run, folder: Path) -> None:
    pytest.importorskip("torch")
    faulty = "lockstep.impl.faults.torch:window_off_by_one"
    ended = run("vectors", "verify", folder, "--backend", faulty)
    assert ended.status == 1, ended.text
    assert f"✗ {faulty} layer-rotating-update" in ended.words
    assert "lockstep replay failures/layer-rotating-update" in ended.words
    (saved, *_) = Path("failures").glob("layer-rotating-update-*/*.json")
    assert len(json.loads(saved.read_text())["ops"]) <= 3
    ended = run("replay", saved, "--backend", faulty)
    assert (ended.status, "FAILED" in ended.out) == (1, True)


def verify_on(run: Run, folder: Path, name: str, status: int) -> Any:
    """The one pair of a verification on a backend of tests.harness.misbehaving."""
    arguments = ("verify", folder, "--backend", f"{HERE}:{name}", "--jobs", 1, "--json")
    ended = run("vectors", *arguments)
    assert ended.status == status, ended.text
    (pair,) = json.loads(ended.out)["pairs"]
    assert pair["kind"] == "kv" and pair["agreed"] > 0
    return pair


def read_lines(folder: Path) -> list[str]:
    return (folder / "layer-kv.jsonl").read_text().splitlines()


def test_a_backend_that_agrees(run: Run, folder: Path) -> None:
    """Undeclared programs are counted, with the reason. Most programs are of another
    dtype or of other sizes, which change no answer: it has float32 alone."""
    pair = verify_on(run, folder, "correct", 0)
    assert (pair["diverged"], pair["known"], pair["crashed"]) == (0, 0, 0)
    reasons = pair["not_declared"]
    assert pair["agreed"] + sum(reasons.values()) == len(read_lines(folder))
    assert any("does not declare" in why for why in reasons)
    assert not any("dtype" in why for why in reasons)
    ended = run("vectors", "verify", folder, "--backend", CORRECT)
    assert "all agree" in ended.words


def test_what_is_not_written_does_not_agree(run: Run, folder: Path) -> None:
    """Of `trim`, so no program with one that is run counts as one that agrees."""
    pair = verify_on(run, folder, "has_no_trim_yet", 2)
    assert list(pair["missing"].values()) == ["trim"]
    lines = read_lines(folder)
    ops = [[op["op"] for op in json.loads(line)["program"]["ops"]] for line in lines]
    assert pair["agreed"] <= sum("trim" not in names for names in ops)
    assert pair["agreed"] + sum(pair["not_declared"].values()) < len(lines)
    ended = run("vectors", "verify", folder, "--backend", f"{HERE}:has_no_trim_yet")
    assert "unfinished" in ended.words
    assert "all agree" not in ended.words


def test_a_crash_does_not_take_the_others_along(
    run_workers: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PID_FILE, str(tmp_path / "mark"))
    pair = verify_on(run_workers, folder, "dies_once", 1)
    assert pair["crashed"] == 1
    assert [one["signature"] for one in pair["failures"]] == ["layer-kv-update-crash"]
    undeclared = sum(pair["not_declared"].values())
    assert pair["agreed"] + 1 + undeclared == len(read_lines(folder))


def test_a_backend_without_these_kinds(run: Run, tmp_path: Path) -> None:
    assert export(run, tmp_path / "set", "encoder").status == 0
    verify = ("vectors", "verify", "set", "--backend")
    ended = run(*verify, CORRECT)
    assert (ended.status, "nothing was run" in ended.words) == (2, True)
    ended = run(*verify, f"{HERE}:factory_raises")
    assert (ended.status, "its factory raised" in ended.words) == (2, True)
