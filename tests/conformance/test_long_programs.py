"""Programs that are too long to be drawn often: each showed a mistake that is found by
chance in one of some thousand programs only, or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, trace
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


Ops = list[dict[str, Any]]


def talk(tokens: list[int], count: int | None = None, end: str = "close") -> Ops:
    """A request, of which `count` tokens are computed."""
    fed = len(tokens) if count is None else count
    begin = {"op": "begin", "tokens": tokens}
    return [begin, {"op": "feed", "count": fed}, {"op": end}]


def make_trie(layers: list[str], ops: Ops) -> Program:
    return make(*ops, contract="prefix", kind="trie", layers=layers)


def limit(size: int | None) -> dict[str, Any]:
    return {"op": "limit", "bytes": size}


IN_PART = [
    *talk([1, 2, 3]),
    {"op": "begin", "tokens": [1, 2, 3]},
    {"op": "feed", "count": 2},
    {"op": "break", "count": 1, "layers": 1},
    {"op": "close"},
    *talk([1, 2, 3, 4]),
    *talk([5]),
    {"op": "count"},
]
"""At [1 2] only the second layer was captured: the first one ran ahead."""


def use(*paths: list[int]) -> Ops:
    """Requests that go on from what is stored, and are cancelled at once."""
    return [op for path in paths for op in talk([*path, 7], 0, "cancel")]


COUNT = {"op": "count"}
AGAIN = [
    *talk([1, 1]),
    *talk([1, 2]),
    *use([1, 1], [1, 2]),
    *talk([3]),
    COUNT,  # 4 tokens, and captures at 1, 1 1, 1 2 and 3
    limit(255),
    COUNT,  # the capture at 1 went: it was not used for the longest time
    limit(None),
    *talk([1, 3]),
    *use([1, 1], [1, 2], [1, 3]),
    *talk([3]),
    COUNT,  # 5 tokens, and captures at 1, 1 1, 1 2, 1 3 and 3
    limit(319),
    COUNT,  # the capture at 1 went again
    limit(287),
    COUNT,  # and now 1 1, with its token
    *talk([1, 4]),
    COUNT,  # 1 4 came, and the capture at 1; 1 2 went for it
]
"""A point where paths part loses what was captured there, is captured again, and loses
it again. A token takes 32 bytes of kv, and a capture of a window of 1 as many."""

BYTES = [256, 224, 320, 288, 224, 256]


def list_long() -> Iterator[Program]:
    """A capture of some layers only is dropped, and so is the next one."""
    layers = ["state", "rotating:1"]
    stored = trace(make_trie(layers, IN_PART))[-1]["bytes"]
    for less in (1, 40, 100, 200, 300):
        yield make_trie(layers, [*IN_PART, limit(stored - less), COUNT, *talk([1, 2, 5])])
    yield make_trie(["kv", "rotating:1"], AGAIN)


@pytest.mark.parametrize("backend", ["torch-cpu", "mlx-cpu"])
@pytest.mark.parametrize("program", [*PROGRAMS.values(), *list_long()])
def test_long_programs_agree(backend: str, program: Program) -> None:
    result = run(program, load(backend), every=True)
    assert (result.divergence, result.skipped) == (None, 0)


def test_what_goes_is_what_was_counted_by_hand() -> None:
    answers = trace(make_trie(["kv", "rotating:1"], AGAIN))
    assert [answer["bytes"] for answer in answers if "bytes" in answer] == BYTES
