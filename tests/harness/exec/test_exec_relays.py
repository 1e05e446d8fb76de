"""Drivers of batches and of paged caches: one that is correct agrees, and wrong answers
are reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.harness.backends.driver import client
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.contracts.batched.model import get_open_config
from lockstep.harness.execution.executor import run as run_program
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import make, trim, update
from tests.harness.commands import Run
from tests.harness.exec.wrong_relay import WAYS, Inline

Start = Callable[..., str]

READS = [{"op": "state"}, {"op": "size"}]
MOVES = [
    {"op": "extract", "row": 0, "into": "x"},
    update(1, cache="x"),
    {"op": "stack", "caches": ["x"], "cache": "b"},
    {"op": "extend", "other": "b"},
    {"op": "save", "into": "s"},
    {"op": "load", "from": "s", "cache": "c"},
    update(1, cache="c"),
]
ALONE = [
    {"op": "extract", "row": 0, "into": "y"},
    update(1, cache="y"),
    trim(1, cache="y"),
    {"op": "state", "cache": "y"},
    {"op": "clone", "cache": "y", "into": "z"},
    {"op": "free", "cache": "y"},
    update(1, cache="z"),
]
TAKES = [trim(1), {"op": "rollback", "counts": [1, 0]}]
PARTS = [{"kind": "batch-kv", "heads": 2}, {"kind": "batch-rotating", "window": 8}]
EXTRAS = [[0, 1, "k"], [1, 3, "l"]]
PAGED = [
    {"op": "open", "request": "a", "tokens": [1, 1, 2], "adapter": "x", "extras": EXTRAS},
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
    {"op": "open", "request": "c", "tokens": [1]},
    {"op": "schedule", "request": "c"},
    {"op": "run"},
    {"op": "accept", "request": "c", "sampled": 1, "drafts": [2, 3], "parents": [0, 0]},
    {"op": "schedule", "request": "c"},
    {"op": "run"},
    {"op": "accept", "request": "c", "sampled": 1, "kept": 2},
]


def make_program(kind: str, data: str = "tags") -> Program:
    """A program with each message of its kind; of a batch with padding on both sides."""
    if kind == "paged-full":
        options = {"data": data, "extra_keys": True, "trees": True, "lookahead": 2}
        return make(*PAGED, contract="paged", kind=kind, **options)
    is_state = kind == "batch-state"
    reads, takes = (READS[:1], []) if is_state else (READS, TAKES)
    begin = [{"op": "open", "rows": 2}, update(3, left=[0, 1]), *reads, *takes]
    padded = [{"op": "pad_right", "lengths": [1, 2]}, update(2), {"op": "finalize"}]
    more = {"caches": PARTS} if kind == "batch-list" else {}
    return make(*begin, *padded, *MOVES, *ALONE, contract="batched", kind=kind, **more)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Lets drivers relay in this process, in some way; returns the name of one."""

    def start(kind: str, *way: Any) -> str:
        monkeypatch.setattr(client, "Process", lambda *_: Inline(kind, *way))
        return f"exec:{sys.executable} a-relay"

    return start


@pytest.mark.parametrize("kind", WAYS)
def test_one_that_is_correct_agrees(start: Start, kind: str) -> None:
    correct = load(start(kind), Limits(strict=True))
    for data in ("tags", "backend"):
        for every in (True, False):
            program = make_program(kind, data)
            assert run_program(program, correct, every=every).divergence is None


def test_slots_of_ranks_are_relayed(start: Start) -> None:
    correct = load(start("paged-full"), Limits(strict=True))
    config = {"kind": "paged-full", "ranks": 2, "extra_keys": True}
    program = make(*PAGED[:4], contract="paged", **config)
    result = run_program(program, correct, every=True)
    assert result.divergence is None and result.comparisons.compared["slots"]


def test_a_copy_of_a_single_list_has_its_offsets(start: Start) -> None:
    """Nothing of the protocol tells them again."""
    correct = load(start("batch-list"))
    config = {**make_program("batch-list").config, "poison": False}
    single = correct.open(get_open_config(config, None, None))
    single.parts[0].offset, single.parts[1].offset = 3, 4
    copy = single.clone()
    single.free()
    assert [part.offset for part in copy.parts] == [3, 4]
    assert [part.offset for part in single.parts] == [0, 0]


@pytest.mark.parametrize("kind", WAYS)
def test_a_wrong_answer_is_reported(start: Start, kind: str, snapshot: Any) -> None:
    """At its step, in words, in a line; a short one keeps the array out of it."""
    said = {}
    for way, change in WAYS[kind].items():
        program = make_program(kind, "backend" if "update" in way else "tags")
        divergence = run_program(program, load(start(kind, *change))).divergence
        assert divergence is not None, way
        assert len(divergence.message) < 700 and " at 0x" not in divergence.message
        assert len(json.dumps(divergence.to_json())) < 20_000
        said[way] = f"{divergence.what} {divergence.step}: {divergence.message}"
    assert said == snapshot


@pytest.mark.parametrize(
    ("kind", "way", "words"),
    [
        ("batch-kv", "offsets of one row", "batched-batch-kv-update-malformed"),
        ("batch-list", "extract one part", "batched-batch-list-extract-malformed"),
        ("paged-full", "entry of a far group", "paged-paged-full-open-malformed"),
    ],
)
def test_the_program_to_blame_is_kept(
    run: Run, start: Start, kind: str, way: str, words: str
) -> None:
    """The command ends with status 1 and the program, not with a traceback of ours."""
    backend = start(kind, *WAYS[kind][way])
    checked = run("check", "--backend", backend, "--kind", kind, "--programs", 6)
    assert checked.status == 1
    assert "Traceback" not in checked.text
    assert words in checked.out
