"""`lockstep faults`: what it finds, what survives, what it prints and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.harness.workers.messages import Found
from tests.harness.commands import HERE, Run, run_slice
from tests.harness.misbehaving import raises_at_length


def test_all_are_found_and_told(run: Run) -> None:
    ended = run("faults", "--backend", f"{HERE}:has_faults")
    assert ended.status == 0, ended.words
    assert "3 of 3 faults found;" in ended.words
    for name in ("nan-in-the-third", "one-less", "raises-late"):
        assert name in ended.out


def test_a_survivor_is_told_and_is_exit_status_1(run: Run) -> None:
    ended = run("faults", "--backend", f"{HERE}:has_a_survivor", "--programs", 120)
    assert ended.status == 1
    assert "no-mistake: not found in 120 programs: as in correct" in ended.words
    assert "1 of 2 faults found" in ended.words


def test_a_mistake_that_loses_the_device_is_not_found(run_workers: Run) -> None:
    """Nor does it spoil the search for the next one, in a process of its own."""
    one_worker = ("--jobs", 1, "--json")
    ended = run_workers("faults", "--backend", f"{HERE}:has_a_deadly_fault", *one_worker)
    assert ended.status == 2
    deadly, other = json.loads(ended.out)["faults"]
    assert (deadly["found"], other["found"]) == (False, True)
    assert "CUDA error: illegal address" in deadly["error"]
    assert other["signature"] == "layer-kv-update-malformed"


def test_one_fault_as_json(run: Run) -> None:
    arguments = ("--fault", "one-less", "--json")
    ended = run("faults", "--backend", f"{HERE}:has_faults", *arguments)
    assert ended.status == 0, ended.words
    outcome = json.loads(ended.out)
    assert outcome["front"] == "hypothesis"
    (fault,) = outcome["faults"]
    assert fault["planted"]["id"] == "one-less"
    assert (fault["found"], fault["operations"]) == (True, 1)
    assert fault["signature"] == "layer-kv-update-malformed"
    assert outcome["summary"]["found"] == 1
    assert 0 < fault["programs"] <= 50


def test_a_search_ends_once_its_mistake_is_found_and_shrunk(run: Run) -> None:
    """Whether the shortest program is unknown, or said to be shorter than it is."""
    for name in ("has_a_fault_of_unknown_length", "has_a_fault_that_is_never_so_short"):
        ended = run("faults", "--backend", f"{HERE}:{name}", "--json")
        (fault,) = json.loads(ended.out)["faults"]
        assert (ended.status, fault["found"]) == (0, True)


UNKNOWN = "lockstep: there is no fault one-les; known: one-less"


@pytest.mark.parametrize(
    ("backend", "more", "words"),
    [
        ("has_a_broken_fault", (), "no-factory: ERROR: "),
        ("has_a_broken_fault", (), "has no factory there_is_no_such_factory"),
        ("names_no_function", (), "misbehaving has no function there_is_none"),
        ("has_faults", ("--fault", "one-les"), UNKNOWN),
        ("correct", (), "no backend names its planted mistakes in `Ba"),
    ],
)
def test_what_cannot_be_searched_is_told(
    run: Run, backend: str, more: tuple[str, ...], words: str
) -> None:
    ended = run("faults", "--backend", f"{HERE}:{backend}", *more)
    assert (ended.status, words in ended.words) == (2, True)


def count_programs(enough: int, tmp_path: Path) -> tuple[int, int]:
    """The programs of 40 that ran, and the operations of the shortest found."""
    done, events = run_slice(tmp_path, raises_at_length(), 40, enough=enough)
    found = [len(event.parsed.ops) for event in events if type(event) is Found]
    return done.counts.programs, min(found)


def test_a_slice_ends_when_a_program_is_short_enough(tmp_path: Path) -> None:
    programs, shortest = count_programs(0, tmp_path)
    assert programs == 40
    assert count_programs(shortest - 1, tmp_path) == (40, shortest)
    programs, operations = count_programs(shortest, tmp_path)
    assert operations == shortest
    assert programs < 20
