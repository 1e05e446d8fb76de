"""Drivers of batches: one that is correct agrees, and wrong answers are reported."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.contracts.batched.model import get_open_config
from lockstep.harness.execution.executor import run as run_program
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers.registry import load
from tests.harness.building import make, trim, update
from tests.harness.commands import Run

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


def name_driver(way: str) -> str:
    return f"exec:{sys.executable} -m tests.harness.exec.batch_driver {way}"


def make_program(kind: str) -> Program:
    """A program with padding on both sides, and with each message of its kind."""
    is_state = kind == "batch-state"
    reads, takes = (READS[:1], []) if is_state else (READS, TAKES)
    begin = [{"op": "open", "rows": 2}, update(3, left=[0, 1]), *reads, *takes]
    padded = [{"op": "pad_right", "lengths": [1, 2]}, update(2), {"op": "finalize"}]
    more = {"caches": PARTS} if kind == "batch-list" else {}
    return make(*begin, *padded, *MOVES, *ALONE, contract="batched", kind=kind, **more)


def run_way(way: str, kind: str, every: bool = True) -> Divergence | None:
    backend = load(name_driver(way), Limits(strict=way == "well"))
    return run_program(make_program(kind), backend, every=every).divergence


@pytest.mark.parametrize("kind", ["batch-kv", "batch-state", "batch-list"])
def test_one_that_is_correct_agrees(kind: str) -> None:
    assert run_way("well", kind) is None
    assert run_way("well", kind, every=False) is None


def test_a_copy_of_a_single_list_has_its_offsets() -> None:
    """Nothing of the protocol tells them again."""
    backend = load(name_driver("well"))
    config = make_program("batch-list").config
    single = backend.open(get_open_config({**config, "poison": False}, None, None))
    single.set_offsets([3, 4])
    copy = single.clone()
    single.free()
    assert [part.offset for part in copy.parts] == [3, 4]
    assert [part.offset for part in single.parts] == [0, 0]


BLAMED = [
    # way, kind, what differs, step, words
    ("keys-of-one-row", "batch-kv", "malformed", 1, "K of update has shape [1, 1, "),
    ("offsets-of-one-row", "batch-kv", "malformed", 1, "[0], not a list of 2"),
    ("offsets-of-three-rows", "batch-state", "malformed", 1, "0], not a list of 2"),
    ("offsets-in-words", "batch-kv", "malformed", 1, 'offsets[0] is "0"; expected an in'),
    ("half-an-offset", "batch-kv", "malformed", 1, "offsets[0] is 0.5; expected an inte"),
    ("wrong-offsets", "batch-kv", "result", 1, "row 0: position is 1, not 0"),
    (
        "mask-in-words",
        "batch-kv",
        "malformed",
        1,
        'is "triangular"; expected null, "caus',
    ),
    ("mask-in-words", "batch-state", "malformed", 1, "expected an object or null"),
    ("mask-of-no-axes", "batch-kv", "mask", 1, "row 0, query 0 sees tokens 0, 1, 2, but"),
    ("mask-of-no-axes", "batch-state", "contents", 1, "row 1, query 0 sees pad 1.0, 4"),
    ("mask-of-one-axis", "batch-kv", "mask", 1, "[5], which does not broadcast to [2, 1"),
    ("mask-of-one-axis", "batch-state", "mask", 1, "[5], which does not broadcast to [2"),
    ("mask-of-three-rows", "batch-kv", "mask", 1, "[3, 1, 2, 2], which does not broadca"),
    ("mask-of-nothing", "batch-kv", "mask", 1, "[2, 1, 3, 0], which does not broadcast"),
    (
        "mask-of-halves",
        "batch-kv",
        "malformed",
        1,
        "mask.data[0] is 0.5; expected 0 or 1",
    ),
    ("mask-of-floats", "batch-kv", "mask", 1, "holds numbers other than 0 and -inf"),
    ("mask-is-null", "batch-kv", "mask", 1, "row 0, query 0 sees tokens 0, 1, 2, but s"),
    ("mask-is-causal", "batch-kv", "contents", 1, "row 1, query 0 sees zeros, 4, but "),
    ("state-of-one-row", "batch-kv", "malformed", 2, "array of shape [1, 1, 3, 4]"),
    ("state-of-null", "batch-kv", "contents", 2, "row 0: holds nothing, but should hold"),
    (
        "state-of-null",
        "batch-state",
        "malformed",
        2,
        "rows[0] is null; expected an objec",
    ),
    ("state-without-values", "batch-kv", "malformed", 2, "rows[0] has no values"),
    ("read-of-one-row", "batch-state", "malformed", 1, "[1, 3, 4], not float32 of shape"),
    ("sizes-of-one-row", "batch-kv", "result", 3, "sizes is [3], not [3, 2]"),
    ("rollback-of-one", "batch-kv", "malformed", 5, "done is 1; expected true or false"),
    ("extract-short", "batch-kv", "offset", 9, "offset is 1, not 2"),
    ("extract-unknown", "batch-kv", "error", 10, "raised Failed: 99"),
    ("save-nothing", "batch-kv", "malformed", 13, "saved is null; expected an integer"),
    ("open-the-same", "batch-kv", "offset", 11, "offsets is [2, 3], not [3]"),
    (
        "extract-one-part",
        "batch-list",
        "malformed",
        9,
        "offsets is [2]; expected 2 integ",
    ),
    (
        "extract-three-parts",
        "batch-list",
        "malformed",
        9,
        "[2, 2, 0]; expected 2 integer",
    ),
    ("extract-no-parts", "batch-list", "malformed", 9, "the answer has no offsets"),
    ("extract-a-short-part", "batch-list", "offset", 9, "part 1: offset is 1, not 2"),
    (
        "trim-one-part",
        "batch-list",
        "malformed",
        18,
        "offsets is [2]; expected 2 integer",
    ),
    (
        "free-one-part",
        "batch-list",
        "malformed",
        21,
        "offsets is [0]; expected 2 integer",
    ),
    ("unknown-part", "batch-list", "error", 1, "raised Failed: there is no part 1"),
    ("part-that-refuses", "batch-list", "error", 2, "there is no part 1"),
    (
        "part-of-one-row",
        "batch-list",
        "malformed",
        1,
        "part 1: offsets returned [0], not",
    ),
    (
        "keys-of-a-part",
        "batch-list",
        "malformed",
        1,
        "part 1: K of update has shape [1, ",
    ),
]


@pytest.mark.parametrize(("way", "kind", "what", "step", "words"), BLAMED)
def test_a_wrong_answer_is_reported(
    way: str, kind: str, what: str, step: int, words: str
) -> None:
    divergence = run_way(way, kind)
    assert divergence is not None
    assert (divergence.what, divergence.step) == (what, step), divergence
    assert words in divergence.message
    assert " at 0x" not in divergence.message


@pytest.mark.parametrize("way", ["many-offsets", "many-sizes"])
def test_a_long_answer_is_reported_in_a_line(way: str) -> None:
    divergence = run_way(way, "batch-kv")
    assert divergence is not None
    assert len(divergence.message) < 700
    assert len(json.dumps(divergence.to_json())) < 20_000


@pytest.mark.parametrize(
    ("way", "kind", "signature", "words"),
    [
        ("offsets-of-one-row", "batch-kv", "update-malformed", "not a list of"),
        ("extract-one-part", "batch-list", "extract-malformed", "one for each cache of"),
    ],
)
def test_the_program_to_blame_is_kept(
    run: Run, way: str, kind: str, signature: str, words: str
) -> None:
    """The command ends with status 1 and the program, not with a traceback of ours."""
    backend: Any = name_driver(way)
    checked = run("check", "--backend", backend, "--kind", kind, "--programs", 1)
    assert checked.status == 1
    assert "Traceback" not in checked.text
    assert f"batched-{kind}-{signature}" in checked.out
    assert words in checked.words
