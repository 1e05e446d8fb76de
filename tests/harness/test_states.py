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


def complete(request: str, **fields: Any) -> Op:
    return {"op": "complete", "request": request, "head": 0, **fields}


FEED, CLOSE, FREE = {"op": "feed", "count": 8}, {"op": "close"}, {"op": "free"}
SNAPSHOT = {"op": "snapshot", "from": 1, "into": "s0"}
RESTORE = {"op": "restore", "snapshot": "s0", "target": 4}
STEP = [ask("schedule", "a"), RUN]
CACHES = [{"kind": "causal"}, {"kind": "swa", "window": 2}, {"kind": "encoder"}]
PROGRAMS: dict[str, tuple[Sequence[Op], dict[str, Any]]] = {
    "layer rotating": (
        [
            *(trim(1), update(2), trim(1), update(3), update(1), update(9), SNAPSHOT),
            *(trim(5), RESTORE, {"op": "clone", "into": "b"}, FREE, update(1)),
        ],
        {"window": 4, "step": 2},
    ),
    "layer kv": (
        [
            *(update(1), update(2), update(2), update(3), trim(1), update(1), update(8)),
            *({"op": "prepare", "offsets": [18, 20]}, update(3), update(1)),
            {"op": "take", "into": ["s1", "s2"]},
        ],
        {"chunk": 4, "step": 3},
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
    "unified chunked": (
        [
            *(forward([place], [0]) for place in range(5)),
            *(forward([5, 6], [0, 0]), forward([7, 8], [0, 0]), remove(0, 7)),
        ],
        {"chunk": 3},
    ),
    "unified wrapper": (
        [
            *(forward([0, 1, 2], [0, 0, 0]), forward([0, 3, 1], [1, 0, 1])),
            *(
                forward([4], [0], multimodal=[0]),
                forward([2, 5], [1, 0], multimodal=[0, 1]),
            ),
            *(copy(0, 2, 4), forward([4, 3], [2, 1]), forward([2], [0])),
            forward([6, 7, 8, 9, 4, 5, 6, 7], [0, 0, 0, 0, 1, 1, 1, 1]),
        ],
        {"sequences": 3, "caches": CACHES},
    ),
    "serving serving-sliding": (
        [
            complete("a", new=4, back=1),
            complete("b", of="a", pieces=[[0, 5]], back=2, slot=0),
            complete("c", of="b", pieces=[[0, 3]], new=2, back=4),
            complete("d", before=1, of="c", pieces=[[0, 3]], back=3),
            complete("e", of="b", pieces=[[0, 4]], back=2, count=9),
            complete("f", of="b", pieces=[[0, 4]], back=2, count=10),
            complete("g", back=0),
            {**complete("h", of="c", pieces=[[0, 6]], new=1, back=4), "op": "queue"},
            {**complete("a", of="d", pieces=[[0, 4]], new=1, back=2), "op": "queue"},
            {"op": "run"},
            {**complete("c", new=3, back=2, count=4), "op": "begin"},
            complete("b", of="c", pieces=[[0, 3]], new=3, back=1),
            {"op": "abort", "request": "c"},
            complete("d", of="c", pieces=[[0, 2]], new=2, back=3),
        ],
        {"context": 16, "window": 5, "layers": 1, "heads": 1, "slots": 2},
    ),
    "serving serving-sinks": (
        [complete("a", new=4, back=2), complete("b", new=4, back=3)],
        {"context": 16, "window": 3, "layers": 1, "heads": 1},
    ),
    "serving serving-state": (
        [
            complete("a", new=4, head=1, at=2),
            complete("b", new=4, head=1, about="a", at=2),
        ],
        {"context": 16, "layers": 2, "heads": 1},
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
