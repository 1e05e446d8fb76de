"""The abstract states before each step of a program that was made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.prefix.states import judge_match
from lockstep.harness.programs.program import walk
from tests.harness.building import forward, make, trim, update
from tests.harness.paging import FULL, RUN, ask, fork, open_request


def begin(*tokens: int) -> Op:
    return {"op": "begin", "tokens": list(tokens)}


def copy(source: int, target: int, length: int) -> Op:
    return {"op": "copy_prefix", "source": source, "target": target, "length": length}


def remove(sequence: int, begin: int, end: int | None = None) -> Op:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


FEED, CLOSE, FREE = {"op": "feed", "count": 8}, {"op": "close"}, {"op": "free"}
SNAPSHOT = {"op": "snapshot", "from": 1, "into": "s0"}
RESTORE = {"op": "restore", "snapshot": "s0", "target": 4}
STEP = [ask("schedule", "a"), RUN]
PROGRAMS: dict[str, tuple[Sequence[Op], dict[str, Any]]] = {
    "layer rotating": (
        [
            *(trim(1), update(2), trim(1), update(3), update(1), update(9), SNAPSHOT),
            *(trim(5), RESTORE, {"op": "clone", "into": "b"}, FREE, update(1)),
        ],
        {"window": 4, "step": 2},
    ),
    "batched batch-kv": (
        [
            *({"op": "open", "rows": 2}, update(3, left=[1, 0]), update(1), trim(2)),
            *({"op": "pad_right", "lengths": [1, 2]}, update(2), {"op": "finalize"}),
            *({"op": "filter", "rows": [1]}, {"op": "extract", "row": 0, "into": "x"}),
            *(update(1, cache="x"), {"op": "stack", "caches": ["x"]}, FREE, update(1)),
        ],
        {},
    ),
    "unified swa": (
        [
            *(forward([0, 1], [0, 0]), copy(0, 1, 2), forward([2, 2], [0, 1])),
            *(remove(1, 1), forward([3], [0]), forward([5], [0]), remove(0, 0, 2)),
            *(forward([0], [1], reserve=True), remove(0, 0), forward([9], [0])),
        ],
        {"sequences": 2, "window": 2},
    ),
    "prefix trie": (
        [
            *(begin(1, 2, 3, 4), FEED, CLOSE, begin(1, 2, 3, 4, 5), FEED, CLOSE),
            *(begin(1, 2, 9), FEED, CLOSE, begin(1, 2, 3, 4), FEED, CLOSE),
            *(begin(1, 2), FEED, CLOSE, begin(7), FEED, {"op": "cancel"}, FREE),
        ],
        {"layers": ["kv"]},
    ),
    "paged paged-full": (
        [
            *(open_request("a", 1, 2, 3), *STEP, ask("accept", "a", sampled=4)),
            *(fork("a", "b", 5), *STEP, ask("preempt", "a"), *STEP, ask("free", "b")),
            *(open_request("c", 1, 2, 3), ask("match", "c"), ask("schedule", "c"), RUN),
        ],
        {"groups": [{**FULL, "block": 2}]},
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_states_before_each_step(what: str, snapshot: SnapshotAssertion) -> None:
    contract, kind = what.split()
    ops, config = PROGRAMS[what]
    lines = []
    program = make(*ops, contract=contract, kind=kind, **config)
    rules = program.rules
    for step in walk(program):
        assert step.skipped is None, step.skipped
        text = rules.operations[step.op["op"]].describe(step.op)
        states = sorted(rules.get_states(step.op, step.model))
        lines.append(f"{text}: {', '.join(states)}")
        step.run_reference()
    assert lines == snapshot


LONG, SHORT = [1, 2, 3, 4], [1, 2]


@pytest.mark.parametrize(
    ("tokens", "matched", "stored", "state"),
    [
        (SHORT, 0, [], "nothing-stored"),
        (SHORT, 0, [[7]], "no-match"),
        (LONG, 2, [SHORT], "extension"),
        (LONG, 2, [[1, 2, 9]], "divergence"),
        (SHORT, 2, [LONG, SHORT], "repeat"),
        (SHORT, 2, [LONG], "shorter"),
    ],
)
def test_a_request_beside_stored_conversations(
    tokens: list[int], matched: int, stored: list[list[int]], state: str
) -> None:
    assert judge_match(tokens, matched, stored) == state
