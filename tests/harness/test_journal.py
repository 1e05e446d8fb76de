"""The journal of an exploration: written line by line, read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.journal import Journal

COUNTS: dict[str, Any] = {
    "programs": 3,
    "steps": 9,
    "skipped": 0,
    "covered": 4,
    "avoided": 1,
    "margin": 0.5,
    "signatures": {},
    "coverage": [["fresh", "update", 3]],
    "digest": "abc",
}


def make(folder: Path, **about: Any) -> Journal:
    return Journal(folder, "mine.module:make-kv", {"depth": 3, **about}, 2)


def write(folder: Path) -> Journal:
    journal = make(folder)
    journal.begin()
    journal.add(1, {**COUNTS, "event": "done"})
    journal.add(0, COUNTS)
    return journal


def test_what_was_done_comes_back(tmp_path: Path) -> None:
    journal = write(tmp_path)
    assert journal.load() == {0: COUNTS, 1: COUNTS}
    assert make(tmp_path).load() == journal.load()


def test_nothing_was_done(tmp_path: Path) -> None:
    assert make(tmp_path).load() == {}


def test_another_exploration(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UsageError, match="is about something else"):
        make(tmp_path, depth=4).load()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_the_last_line_was_cut_off(tmp_path: Path, cut: int) -> None:
    journal = write(tmp_path)
    journal.path.write_text(journal.path.read_text()[:-cut])
    assert journal.load() == {1: COUNTS}
    journal.add(0, COUNTS)
    assert journal.load() == {0: COUNTS, 1: COUNTS}


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (1, "{}", "is about something else"),
        (1, "[" * 100_000, "no JSON"),
        (2, "nothing like it", ":2: no JSON"),
        (2, "", ":2: no JSON"),
        (2, json.dumps({"part": 1}), "'counts' is a required property"),
        (2, json.dumps({"part": -1, "counts": COUNTS}), "-1 is less than the minimum"),
        (2, json.dumps({"part": 2, "counts": COUNTS}), ":2: there is no such part"),
        (2, json.dumps({"part": 1, "counts": {}}), "is a required property"),
        (3, "5", ":3: 5 is not of type 'object'"),
        (3, json.dumps({"part": 1, "counts": {**COUNTS, "steps": "9"}}), "'9' is not"),
        (3, json.dumps({"part": 1, "counts": {**COUNTS, "coverage": [5]}}), "5 is not"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, line: int, text: str, why: str) -> None:
    journal = write(tmp_path)
    lines = journal.path.read_text().split("\n")
    lines[line - 1] = text
    journal.path.write_text("\n".join(lines))
    with pytest.raises(UsageError) as error:
        journal.load()
    assert why in str(error.value)
    assert str(journal.path) in str(error.value)


def test_it_is_no_text(tmp_path: Path) -> None:
    journal = write(tmp_path)
    journal.path.write_bytes(b"\xff\xfe" * 9)
    with pytest.raises(UsageError, match="cannot be read"):
        journal.load()


def test_it_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = write(tmp_path)
    monkeypatch.setattr("lockstep.harness.jobs.journal.MAX_BYTES", 100)
    with pytest.raises(UsageError, match="larger than"):
        journal.load()


def test_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "explored").write_text("a file in the place of the folder")
    with pytest.raises(UsageError, match="choose another folder with --failures"):
        make(tmp_path).begin()


def test_half_a_line_cannot_be_taken_away(tmp_path: Path) -> None:
    journal = write(tmp_path)
    text = journal.path.read_text()[:-1]
    journal.path.unlink()
    journal.path.mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        journal.load()
    journal.path.rmdir()
    journal.path.write_text(text)
    assert journal.load() == {1: COUNTS}
    assert journal.path.read_text().endswith("}\n")
