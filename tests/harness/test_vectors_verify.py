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

from tests.harness.commands import Ended, Run, invoke

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


@pytest.mark.parametrize("name", ["notes.txt", "a/b.txt", ".hidden", "manifest.json"])
def test_a_folder_that_is_not_empty_is_left_alone(
    run: Run, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    ended = export(run, folder)
    assert (ended.status, "is not an empty folder" in ended.words) == (2, True)
    assert read_all(folder) == {name: b"mine"}


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


KV = "layer-kv.jsonl:1:"
DAMAGED = [
    (shutil.rmtree, "manifest.json: there is no such file"),
    (put(format="lockstep-vectors/2"), "'lockstep-vectors/2'"),
    (put(files={"a/b.md": {}}), "manifest.json: "),
    (manifest(lambda d: d.pop("files")), "required field `files`"),
    (lambda f: (f / "sub").mkdir(), "the manifest does not name this file"),
    (lambda f: (f / "layer-kv.jsonl").unlink(), "layer-kv.jsonl: there is no such"),
    (cut(10), "was changed"),
    (cut(10, rehash), "its last line is cut off"),
    (cut_a_line, "programs, but the manifest says"),
    (change_a_letter, "README.md: was changed"),
    (line(lambda d: d.update(format="x")), f"{KV} is not a line of the format"),
    (put_config(heads=10**9), f"{KV} config: heads: 1000000000 is greater than"),
    (line(lambda d: d["program"]["ops"][0].update(op="eval")), 'unknown "eval"'),
    (line(lambda d: d["expected"].pop()), "answers, but"),
    (
        put_config(kind="rotating", window=4),
        "layer rotating program, but the manifest says kv",
    ),
    (holds(lambda file: file["holds"].update(kind="kvv")), "the manifest says kvv"),
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
    assert "layer-kv.jsonl:2: step 0, update with" in ended.words
    assert "the set expects" in ended.words
