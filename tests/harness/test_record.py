"""The write-ahead record: what was running, at every moment, as a program file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.execution.record import Record
from lockstep.harness.programs.program import Program, load_programs, parse_program
from lockstep.harness.workers.pool import is_running
from tests.harness.building import make, update

UPDATE = update(1)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with closing(Record(tmp_path / "running" / "1-1.json")) as record:
        yield record


def load(record: Record) -> tuple[Program, Any]:
    """The program that stands in the record, and its step."""
    program = load_programs(record.path)[0]
    return program, program.meta["step"]


@pytest.mark.parametrize("count", [0, 3, 40, 3000])
def test_a_record_is_a_program_file_at_any_time(record: Record, count: int) -> None:
    """3000 operations take more than the 64 KiB that a record has at first."""
    program = make(*[UPDATE] * count)
    record.begin(program, "one")
    for step in (0, 9, 10, 99_999, 7):
        record.step(step)
        running, at = load(record)
        assert (running.config, running.ops) == (program.config, program.ops)
        assert (at, running.meta["backend"]) == (step, "one")


def test_a_shorter_program_leaves_nothing_of_a_longer_one(record: Record) -> None:
    for count in (50, 1, 3000, 2):
        program = make(*[UPDATE] * count)
        record.begin(program, "one")
        assert load(record)[0].digest() == program.digest()
    record.clear()
    assert json.loads(record.path.read_bytes()) == {}


@pytest.mark.parametrize("count", [1, 3000])
def test_the_pool_knows_whether_something_is_running(record: Record, count: int) -> None:
    assert not is_running(record.path.read_bytes())
    record.begin(make(*[UPDATE] * count), "one")
    assert is_running(record.path.read_bytes())
    record.end()
    assert not is_running(record.path.read_bytes())
    meta = {"backend": "one", "run": 1, "running": False, "step": -1, "side": 0}
    assert load(record)[0].meta == meta
    record.begin(make(*[UPDATE] * count), "one")
    assert is_running(record.path.read_bytes())
    record.clear()
    assert not is_running(record.path.read_bytes())


@pytest.mark.parametrize(
    "meta",
    [
        {"step": 12, "what": "differs"},
        {"note": '"step": 0'},
        {"step": 1, "found": {"step": 0}},
        {"found": {"step": 0}},
        {"backend": "another", "running": False},
    ],
)
def test_meta_does_not_move_the_step(record: Record, meta: dict[str, Any]) -> None:
    program = make(UPDATE)
    record.begin(Program(program.contract, program.config, program.ops, meta), "one")
    record.step(4711)
    running, step = load(record)
    assert (step, running.meta["backend"]) == (4711, "one")
    assert running.digest() == program.digest()


def test_begin_returns_what_only_depends_on_the_program(record: Record) -> None:
    program = make(UPDATE)
    body = record.begin(program, "one")
    assert parse_program(json.loads(body), "body") == program
    assert record.begin(program, "two") == record.begin(program, "one") == body


def test_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(Record(tmp_path / "1-1.json")) as record:
        record.begin(make(UPDATE), "one")
    assert not any(tmp_path.iterdir())
