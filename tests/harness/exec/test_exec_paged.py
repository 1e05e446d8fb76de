"""Drivers of paged caches: one that is correct agrees, and wrong answers are reported."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.execution.executor import run as run_program
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers.registry import load
from tests.harness.building import draw_some, make
from tests.harness.commands import Run

STEPS: list[dict[str, Any]] = [
    {"op": "open", "request": "a", "tokens": [1, 1, 2]},
    {"op": "match", "request": "a"},
    {"op": "schedule", "request": "a"},
    {"op": "run"},
    {"op": "fork", "source": "a", "target": "b", "tokens": [2, 2]},
    {"op": "schedule", "request": "b"},
    {"op": "run"},
    {"op": "accept", "request": "b", "sampled": 1},
    {"op": "rewind", "request": "a", "to": 1, "tokens": [2]},
    {"op": "preempt", "request": "b"},
    {"op": "free", "request": "a", "reuse": False},
    {"op": "evict", "count": 1},
    {"op": "reset"},
]
OF = {each["op"]: number for number, each in reversed(list(enumerate(STEPS)))}


def name_driver(way: str) -> str:
    return f"exec:{sys.executable} -m tests.harness.exec.paged_driver {way}"


def make_program(data: str) -> Program:
    return make(*STEPS, contract="paged", kind="paged-full", data=data)


def run_way(way: str, data: str = "tags") -> Divergence | None:
    backend = load(name_driver(way), Limits(strict=way == "well"))
    return run_program(make_program(data), backend).divergence


@pytest.mark.parametrize("data", ["tags", "backend"])
def test_one_that_is_correct_agrees(data: str) -> None:
    """Each message is sent; that of a state group is by the relay of ours."""
    assert run_way("well", data) is None


def test_all_that_it_declares_agrees() -> None:
    backend = load(name_driver("well"), Limits(strict=True))
    declared = backend.contracts["paged"]["paged-full"]
    assert declared.tells == {"pool", "entries", "events"}
    for program in draw_some(40, "paged", "paged-full", declared, 5, backend.dtypes):
        assert run_program(program, backend).divergence is None


BLAMED = [
    # way, what differs, step, words
    ("hit-is-null", "malformed", "match", "hit is null; expected an integer"),
    (
        "start-in-words",
        "malformed",
        "schedule",
        'start is "0"; expected an integer or nu',
    ),
    ("start-is-late", "result", "schedule", "start is 2, not 0"),
    ("no-start", "malformed", "schedule", "the answer has no start"),
    ("no-table", "malformed", "schedule", "tables returned [], not a list of 1"),
    ("two-tables", "malformed", "schedule", "not a list of 1"),
    ("tables-are-null", "malformed", "schedule", "tables is null; expected a list"),
    ("table-is-null", "malformed", "schedule", "tables[0] is null; expected a list"),
    (
        "table-of-nulls",
        "references",
        "schedule",
        "has 1 references, and 0 tables hold it",
    ),
    (
        "table-of-words",
        "malformed",
        "schedule",
        'tables[0][0] is "a"; expected an integer',
    ),
    ("half-a-block", "malformed", "schedule", "tables[0][0] is 0.5; expected an integer"),
    (
        "copies-of-one",
        "malformed",
        "open",
        "copies[0] is [1]; expected a list of length 2",
    ),
    ("copies-to-null", "malformed", "open", "copies[0][1] is null; expected an integer"),
    (
        "references-by-name",
        "malformed",
        "open",
        'references is {"1": 1}; expected a list',
    ),
    ("references-twice", "malformed", "open", "references has block 1 2 times"),
    ("pool-without-cached", "malformed", "open", "the answer has no cached"),
    ("free-is-a-count", "malformed", "open", "free is 12; expected a list"),
    (
        "entry-of-no-group",
        "malformed",
        "open",
        "[0].group is -1; expected an integer >= 0",
    ),
    ("entry-of-a-far-group", "malformed", "open", "entries has 7, not a group below 1"),
    ("entry-of-nothing", "malformed", "open", "entries[0].tokens is []; expected a list"),
    (
        "entry-of-null",
        "malformed",
        "open",
        "entries[0].block is null; expected an integer",
    ),
    (
        "entry-of-numbers",
        "malformed",
        "open",
        "entries[0] is [0, null, [1, 1], 0]; expec",
    ),
    (
        "entry-that-lies",
        "hash",
        "open",
        "the entry of 2 tokens [7, 7] (namespace None, gr",
    ),
    (
        "moved",
        "malformed",
        "open",
        'events[0].event is "moved"; expected one of stored, ',
    ),
    ("stored-nothing", "malformed", "open", 'events[0] is "stored" and has no entry'),
    ("cleared-one", "malformed", "open", 'events[0] is "cleared" and has an entry'),
    (
        "no-events",
        "events",
        "run",
        "by its events 0 blocks can be hit for the tokens [1, 1]",
    ),
    ("fork-is-one", "malformed", "fork", "ok is 1; expected true or false"),
    ("rewind-is-null", "malformed", "rewind", "ok is null; expected true or false"),
    ("evicted-a-list", "malformed", "evict", "evicted is [0]; expected an integer"),
    ("reset-without-ok", "malformed", "reset", "the answer has no ok"),
    ("run-fails", "error", "run", "raised Failed: out of memory"),
    ("run-is-missing", "missing", "run", "run is not written yet"),
    ("free-is-refused", "error", "free", "not now"),
    ("update-of-none", "malformed", "run", "update returned [], not a list of 1"),
    ("update-of-null", "malformed", "run", "requests[0] is null; expected an object"),
    ("update-without-values", "malformed", "run", "requests[0].values is null; expected"),
]


@pytest.mark.parametrize(("way", "what", "operation", "words"), BLAMED)
def test_a_wrong_answer_is_reported(
    way: str, what: str, operation: str, words: str
) -> None:
    divergence = run_way(way, "backend" if way.startswith("update") else "tags")
    assert divergence is not None
    assert (divergence.what, divergence.step) == (what, OF[operation]), divergence
    assert words in divergence.message


def test_the_program_to_blame_is_kept(run: Run) -> None:
    backend = name_driver("entry-of-a-far-group")
    checked = run("check", "--backend", backend, "--programs", 6)
    assert checked.status == 1
    assert "Traceback" not in checked.text
    assert "paged-full-open-malformed" in checked.out
