"""The journal of an exploration: written line by line, read with suspicion."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.explore import Journal
from lockstep.harness.workers.messages import Counts, SliceDone, unfold

COUNTS = Counts(programs=3, steps=9, covered=4, avoided=1, margins={"keys": 0.5})
DONE = SliceDone(COUNTS, [("fresh", "update", 3)], "abc")


def make(folder: Path, **about: Any) -> Journal:
    return Journal(folder, "mine.module:make-kv", {"depth": 3, **about}, 2)


def write(folder: Path) -> Journal:
    journal = make(folder)
    journal.begin()
    journal.add(1, DONE)
    journal.add(0, SliceDone(replace(COUNTS, seconds=0.1), DONE.coverage, "abc"))
    return journal


def test_finished_slices_come_back(tmp_path: Path) -> None:
    assert make(tmp_path).load() == {}
    journal = write(tmp_path)
    assert journal.load() == make(tmp_path).load() == {0: DONE, 1: DONE}
    with pytest.raises(UsageError, match="belongs to a run with other code"):
        make(tmp_path, depth=4).load()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_the_last_line_was_cut_off(tmp_path: Path, cut: int) -> None:
    journal = write(tmp_path)
    journal.path.write_text(journal.path.read_text()[:-cut])
    assert journal.load() == {1: DONE}
    assert journal.path.read_text().endswith("}\n")
    journal.add(0, DONE)
    assert journal.load() == {0: DONE, 1: DONE}


def line(part: Any = 1, counts: Any = COUNTS, **fields: Any) -> str:
    done = {**unfold(DONE), "counts": counts, **fields}
    return json.dumps({"part": part, "done": done}, default=unfold)


def counts(**fields: Any) -> dict[str, Any]:
    return {**unfold(COUNTS), **fields}


@pytest.mark.parametrize(
    ("number", "text", "why"),
    [
        (1, "{}", "belongs to a run with other code"),
        (1, "[" * 100_000, ":1: is nested too deeply"),
        (2, "nothing like it", ":2: is not JSON"),
        (2, '{"part": 1}', "missing required field `done`"),
        (2, line(part=2), ":2: there is no slice 2"),
        (2, line(event="Ran"), "Invalid value 'Ran' - at `$.done.event`"),
        (2, line(counts=5), "Expected `object`, got `int` - at `$.done.counts`"),
        (2, line(digest=None), "Expected `str`, got `null` - at `$.done.digest`"),
        (3, "5", ":3: Expected `object`, got `int`"),
        (3, line(counts=counts(steps="9")), "`$.done.counts.steps`"),
        (
            3,
            line(counts=counts(margins={"keys": float("nan")})),
            ":3: is not JSON: NaN is not a JSON number",
        ),
        (3, line(counts=counts(signatures={"a": -1})), "`$.done.counts.signatures"),
        (3, line(coverage=[["a", "b", -1]]), "`$.done.coverage[0][2]`"),
    ],
)
def test_broken_lines_are_refused(
    tmp_path: Path, number: int, text: str, why: str
) -> None:
    journal = write(tmp_path)
    lines = journal.path.read_text().split("\n")
    lines[number - 1] = text
    journal.path.write_text("\n".join(lines))
    with pytest.raises(UsageError) as error:
        journal.load()
    assert why in str(error.value)
    assert str(journal.path) in str(error.value)
    assert number == 1 or str(error.value).endswith("; start without --resume")


def test_a_file_that_cannot_be_read_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("lockstep.harness.jobs.explore.MAX_BYTES", 100)
        with pytest.raises(UsageError, match="too large"):
            journal.load()
    journal.path.write_bytes(b"\xff\xfe" * 9)
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        journal.load()
    journal.path.unlink()
    journal.path.mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        journal.load()
    with pytest.raises(UsageError, match="choose another folder with --failures"):
        journal.begin()
