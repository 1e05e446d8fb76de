"""Programs of layer caches that are too long to be drawn often: each showed a mistake
that is found by chance in one of some thousand programs only."""

from __future__ import annotations

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import make, trim, update

CLONE, VIEW = {"op": "clone", "into": "b"}, {"op": "view"}

VIEWS = [CLONE, update(1), update(1, cache="b"), VIEW, {**VIEW, "cache": "b"}]
"""What was viewed of the first is that of the second now."""

CUT = [
    update(3),
    {"op": "snapshot", "from": 1, "into": "s"},
    trim(1),
    update(1),  # the snapshot is copied
    {"op": "split", "snapshot": "s", "at": 2, "parent": "left", "child": "right"},
    {"op": "restore", "snapshot": "right", "target": 3},
    VIEW,
]

MERGED = [
    update(1),
    {"op": "snapshot", "from": 0, "into": "s"},
    CLONE,
    update(1, cache="b"),
    {"op": "snapshot", "from": 1, "into": "t", "cache": "b"},
    {"op": "merge", "parent": "s", "child": "t", "into": "u"},
    {"op": "restore", "snapshot": "u", "target": 2},
    VIEW,
]

AGAIN = [
    {"op": "prepare", "offsets": [1]},
    update(1),
    trim(1),
    update(1),
    {"op": "take", "into": ["s"]},
    {"op": "restore", "snapshot": "s", "target": 1},
    VIEW,
]

TAKEN = [
    update(2),
    {"op": "snapshot", "from": 0, "into": "s"},
    {"op": "prepare", "offsets": [1, 3], "cache": "b"},
    {"op": "restore", "snapshot": "s", "target": 2, "cache": "b"},  # past 1
    update(1, cache="b"),
    trim(3, cache="b"),
    update(1, cache="b"),
    {"op": "take", "into": ["t", "u"], "cache": "b"},
]

PROGRAMS = {
    "views of clones share their memory": make(*VIEWS),
    "a copied snapshot is cut as if it began at 0": make(*CUT),
    "snapshots of two caches are merged in the memory of one": make(*MERGED),
    "what was captured is captured again": make(*AGAIN, kind="rotating", window=2),
    "captures are taken in the order in which they were made": make(*TAKEN),
}
"""Mistake → the program that shows it in its last step."""


@pytest.mark.parametrize("name", ["torch-cpu", "mlx-cpu"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_long_programs_agree(program: Program, name: str) -> None:
    result = run(program, load(name), every=True)
    assert (result.divergence, result.skipped) == (None, 0)
