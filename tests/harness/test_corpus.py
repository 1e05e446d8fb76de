"""A corpus as a folder: what it keeps, and what it refuses; and in a check."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import open_folder
from lockstep.harness.execution.record import Record
from lockstep.harness.programs import corpus as module
from lockstep.harness.programs.corpus import (
    MOST_GIVEN,
    Corpora,
    Corpus,
    CorpusFolder,
    find_cells,
    open_corpus,
)
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.messages import Kept, RandomTask
from lockstep.harness.workers.runner import Runner
from lockstep.harness.workers.slices import RandomSlice
from tests.harness.building import declare_all, draw_some, make, trim, update
from tests.harness.commands import HERE, Run
from tests.harness.misbehaving import correct


def list_digests(corpus: Corpus) -> list[str]:
    return [program.digest() for program in corpus.list_programs()]


def test_the_order_of_programs_does_not_matter() -> None:
    programs = draw_some(40, "layer", "kv", declare_all("layer", "kv"))
    kept = []
    for seed in range(3):
        Random(seed).shuffle(programs)
        corpus = Corpus()
        for program in programs:
            corpus.add(program, find_cells(program))
        kept.append(list_digests(corpus))
    assert kept[0] == kept[1] == kept[2]
    assert len(kept[0]) < len(programs)


def test_programs_are_written_and_read_again(place: str) -> None:
    folder = open_corpus(place)
    programs = [*draw_some(9, "layer", "kv", declare_all("layer", "kv"))]
    programs += draw_some(9, "unified", "causal", declare_all("unified", "causal"))
    for program in programs:
        folder.add(program)
    folder.save()
    files = folder.folder.list()
    assert {file.partition("/")[0] for file in files} == {"kv", "causal"}
    again = open_corpus(place)
    assert {f"{one.kind}/{one.digest()}.json" for one in again.list_programs()} == {
        *files
    }
    for kind in ("kv", "causal"):
        assert list_digests(again.get(kind)) == list_digests(folder.get(kind))
    assert again.compute_digest() == folder.compute_digest()
    again.save()
    assert folder.folder.list() == files


@pytest.fixture(params=["local", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "new")
    pytest.importorskip("fsspec", reason="of the extra ray")
    return f"memory://{tmp_path}"


def test_a_shorter_program_replaces_a_longer_one(tmp_path: Path) -> None:
    """Its file goes; other files of the folder stay."""
    long, short = make(update(1), update(2), trim(1)), make(update(1), trim(1))
    folder = open_corpus(str(tmp_path))
    folder.add(long)
    folder.save()
    own = tmp_path / "mine.json"
    own.write_text(json.dumps(long.to_json()))
    folder = open_corpus(str(tmp_path))
    folder.add(short)
    assert folder.save() == 2 and folder.save() == 2
    assert find_file(folder, short).is_file() and own.is_file()
    assert find_file(folder, long).is_file()  # it reaches one cell more
    folder = CorpusFolder(folder.folder)
    folder.adopt_files()
    folder.add(short)
    assert folder.save() == 1
    assert not find_file(folder, long).exists() and own.is_file()
    folder.add(long)
    folder.add(make(update(1), update(1), trim(1)))
    assert len(folder.get("kv").list_programs()) <= 3


def find_file(folder: CorpusFolder, program: Program) -> Path:
    return Path(folder.folder.place) / program.kind / f"{program.digest()}.json"


def test_a_slice_gets_some_and_the_next_one_others() -> None:
    folder = Corpora()
    for number in range(MOST_GIVEN + 10):
        folder.get("kv").add(make(update(number + 1)), [(str(number), "update")])
    first, second = folder.choose("kv", 0), folder.choose("kv", 1)
    assert len(first) == len(second) == MOST_GIVEN
    assert first[0] != second[0] and folder.choose("kv", 0) == first
    assert folder.choose("rotating", 5) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ('{"format": "lockstep/9"}', "format"), ("[]", "a.json")],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        open_corpus(str(tmp_path))


def test_too_many_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(make(update(1)).to_json()))
    with pytest.raises(UsageError, match="2 program files"):
        open_corpus(str(tmp_path))


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder; give a folder"):
        open_corpus(str(tmp_path / "file"))


# --- in a slice, and in a check ---------------------------------------------------------


def run_slice(folder: Path, corpus: list[dict[str, Any]] | None) -> list[Kept]:
    events: list[Any] = []
    record = Record(folder / "record.json")
    names = "mine", "layer", "kv", 0
    task = RandomTask(*names, generator="guided", seed=1, programs=20, corpus=corpus)
    RandomSlice(Runner(record, events.append), correct(), task).check()
    record.close()
    return [event for event in events if isinstance(event, Kept)]


def test_a_slice_tells_what_it_keeps_if_that_is_wanted(tmp_path: Path) -> None:
    assert run_slice(tmp_path, None) == []
    kept = run_slice(tmp_path, [])
    assert all([*find_cells(each.parse())] == each.cells for each in kept)
    given = [each.program for each in kept]
    again = run_slice(tmp_path, given)
    assert not {str(each.program) for each in again} & set(map(str, given))
    assert len(again) < len(kept)


@pytest.mark.parametrize("cells", [[("lost", "update")], [("empty", "update")] * 2])
def test_cells_that_there_are_not_are_refused(cells: Any) -> None:
    with pytest.raises(ValueError, match="cannot reach such cells"):
        Kept(make(update(1)).to_json(), cells).check()


def test_a_slice_leaves_out_what_the_backend_does_not_declare(tmp_path: Path) -> None:
    other = make(update(1), kind="rotating", window=2).to_json()
    assert run_slice(tmp_path, [other]) == run_slice(tmp_path, [])


def test_check_starts_from_a_folder_and_adds_to_it(run: Run, tmp_path: Path) -> None:
    chosen = "--backend", f"{HERE}:correct", "--programs", 20, "--corpus", tmp_path / "c"
    guided = "--generator", "guided"
    assert run("check", *chosen, *guided).status == 0
    before = {path.name for path in (tmp_path / "c").rglob("*.json")}
    assert len(before) > 10
    assert run("check", *chosen, *guided, "--seed", 1).status == 0
    after = {path.name for path in (tmp_path / "c").rglob("*.json")}
    assert after != before and after & before
    ended = run("check", *chosen, "--generator", "plain")
    assert (ended.status, "--generator guided" in ended.words) == (2, True)
    (tmp_path / "c" / "bad.json").write_text("{")
    ended = run("check", *chosen, *guided)
    assert (ended.status, "bad.json" in ended.words) == (2, True)


def test_what_was_found_is_kept_if_the_corpus_cannot_be_written(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    chosen = "--backend", f"{HERE}:wrong_twice", "--programs", 20, "--generator", "guided"
    place = ("--corpus", tmp_path / "file" / "c", "--failures", tmp_path / "f")
    ended = run("check", *chosen, *place)
    assert (ended.status, "c: cannot be written: Not a dir" in ended.err) == (1, True)
    assert list((tmp_path / "f").glob("layer-kv-*/*.json"))
    assert (tmp_path / "f" / "outcome.json").exists()


def test_a_file_of_a_store_that_has_gone_is_passed_over() -> None:
    pytest.importorskip("fsspec")
    folder = open_folder("memory://gone")
    folder.replace("x.json", b"{}")
    assert [*folder.read_all(["x.json", "y.json"])] == [("x.json", b"{}")]
