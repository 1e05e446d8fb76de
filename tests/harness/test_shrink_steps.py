"""The steps of shrinking that a person would take, one by one, each on a program made by
hand: whether the simpler one is among those that are proposed."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op
from lockstep.harness.execution.shrink import get_domain_steps, get_simpler
from lockstep.harness.programs.program import Program, parse_program

Ops = list[dict[str, Any]]


def make(contract: str, kind: str, ops: Ops, **config: Any) -> Program:
    fields = {"kind": kind, **config}
    document = {"format": "lockstep/1", "contract": contract, "config": fields}
    return parse_program({**document, "ops": ops}, "here")


def is_proposed(before: Program, after: Program) -> bool:
    wanted = after.digest()
    return any(step.digest() == wanted for step in get_domain_steps(before))


def update(length: int, cache: str = "a") -> Op:
    return {"op": "update", "length": length, "cache": cache}


def snapshot(name: str, begin: int = 0) -> Op:
    return {"op": "snapshot", "from": begin, "into": name}


def restore(name: str | None, target: int) -> Op:
    return {"op": "restore", "snapshot": name, "target": target}


LAYER: dict[str, tuple[Ops, Ops]] = {
    "no clone, the original in its place": (
        [update(1), {"op": "clone", "into": "b"}, update(2, "b")],
        [update(1), update(2)],
    ),
    "one cache in the place of two": (
        [update(1), update(2, "b"), update(3)],
        [update(1), update(2), update(3)],
    ),
    "a snapshot in the place of captures": (
        [
            {"op": "prepare", "offsets": [0, 4]},
            update(4),
            {"op": "take", "into": ["s0", "s1"]},
            restore("s1", 4),
        ],
        [update(4), snapshot("s1"), restore("s1", 4)],
    ),
    "half of an update, and of what is behind it": (
        [update(100), snapshot("s0"), restore("s0", 90)],
        [update(50), snapshot("s0"), restore("s0", 40)],
    ),
    "one update in the place of two, shorter than both": (
        [update(4), snapshot("s0"), update(1), update(4)],
        [update(4), snapshot("s0"), update(3)],
    ),
    "no trim, but longer updates": (
        [update(1), snapshot("s0"), {"op": "trim", "count": 1}, update(1)],
        [update(2), snapshot("s0"), update(2)],
    ),
}


@pytest.mark.parametrize(("before", "after"), LAYER.values(), ids=list(LAYER))
def test_of_layers(before: Ops, after: Ops) -> None:
    assert is_proposed(make("layer", "kv", before), make("layer", "kv", after))


def forward(positions: list[int], sequences: list[int]) -> Op:
    return {"op": "forward", "positions": positions, "sequences": sequences}


def remove(sequence: int, begin: int) -> Op:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": None}


COPY: Op = {"op": "copy_prefix", "source": 0, "target": 1, "length": 1}

UNIFIED: dict[str, tuple[Ops, Ops]] = {
    "half of the rows": (
        [forward([0, 1, 2, 3], [0, 0, 0, 0])],
        [forward([2, 3], [0, 0])],
    ),
    "sequences numbered from 0 on": (
        [forward([0, 0], [6, 3]), remove(6, 0)],
        [forward([0, 0], [1, 0]), remove(1, 0)],
    ),
    "two sequences as one": ([forward([0, 1], [0, 2])], [forward([0, 1], [0, 0])]),
    "no gap, whatever its size": (
        [forward([0, 40_000], [0, 0]), remove(0, 40_000)],
        [forward([0, 1], [0, 0]), remove(0, 1)],
    ),
    "no gap in any sequence": (
        [forward([37_420, 306], [0, 1])],
        [forward([37_114, 0], [0, 1])],
    ),
    "one row at the beginning": ([forward([7, 7], [0, 0])], [forward([7, 0], [0, 0])]),
    "no copy, the sequence itself in its place": (
        [forward([0], [0]), COPY, remove(1, 0)],
        [forward([0], [0]), remove(0, 0)],
    ),
}


@pytest.mark.parametrize(("before", "after"), UNIFIED.values(), ids=list(UNIFIED))
def test_of_passes(before: Ops, after: Ops) -> None:
    config = {"sequences": 8}
    small = make("unified", "causal", after, **config)
    assert is_proposed(make("unified", "causal", before, **config), small)


@pytest.mark.parametrize(
    "simpler",
    [
        [{"kind": "causal", "capacity": 4}, {"kind": "swa", "window": 1}],
        [{"kind": "causal", "capacity": 4}, {"kind": "causal"}],
        [{"kind": "swa", "window": 3}],
        [{"kind": "causal", "capacity": 1}, {"kind": "swa", "window": 3}],
    ],
)
def test_of_the_caches_of_a_wrapper(simpler: list[dict[str, Any]]) -> None:
    ops = [forward([0], [0])]
    caches = [{"kind": "causal", "capacity": 4}, {"kind": "swa", "window": 3}]
    before = make("unified", "wrapper", ops, caches=caches)
    assert is_proposed(before, make("unified", "wrapper", ops, caches=simpler))


def test_a_list_keeps_as_many_items_as_it_must_have() -> None:
    schema = CONTRACTS["prefix"].config["layers"]
    assert [] not in get_simpler(["state"], schema)
