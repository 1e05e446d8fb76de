"""The steps of shrinking that a person would take, one by one, each on a program made by
hand: whether the simpler one is among those that are proposed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.shrink import get_domain_steps, get_simpler
from lockstep.harness.programs.program import Program
from tests.harness.building import forward, make, trim, update

Ops = Sequence[dict[str, Any]]

make_wrapper = partial(make, forward([0], [0]), contract="unified", kind="wrapper")


def is_proposed(before: Program, after: Program) -> bool:
    wanted = after.digest()
    return any(step.digest() == wanted for step in get_domain_steps(before))


def snapshot(name: str) -> dict[str, Any]:
    return {"op": "snapshot", "from": 0, "into": name}


def restore(name: str, target: int) -> dict[str, Any]:
    return {"op": "restore", "snapshot": name, "target": target}


def remove(sequence: int, begin: int) -> dict[str, Any]:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": None}


def opened(name: str, tokens: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"op": "open", "request": name, "tokens": tokens, **more}


def accept(**fields: Any) -> dict[str, Any]:
    return {"op": "accept", "request": "a", "sampled": 1, **fields}


CLONE = {"op": "clone", "into": "b"}
COPY = {"op": "copy_prefix", "source": 0, "target": 1, "length": 1}
PREPARE = {"op": "prepare", "offsets": [0, 4]}
TAKE = {"op": "take", "into": ["s0", "s1"]}

LAYER: dict[str, tuple[Ops, Ops]] = {
    "no clone, the original in its place": (
        [update(1), CLONE, update(2, cache="b")],
        [update(1), update(2)],
    ),
    "one cache in the place of two": (
        [update(1), update(2, cache="b"), update(3)],
        [update(1), update(2), update(3)],
    ),
    "a snapshot in the place of captures": (
        [PREPARE, update(4), TAKE, restore("s1", 4)],
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
        [update(1), snapshot("s0"), trim(1), update(1)],
        [update(2), snapshot("s0"), update(2)],
    ),
}

UNIFIED: dict[str, tuple[Ops, Ops]] = {
    "half of the rows": (
        [forward([0, 1, 2, 3], [0, 0, 0, 0])],
        [forward([2, 3], [0, 0])],
    ),
    "sequences numbered from 0 on": (
        [forward([0, 0], [6, 3]), remove(6, 0)],
        [forward([0, 0], [1, 0]), remove(1, 0)],
    ),
    "one row less, and the positions behind it": (
        [forward([0, 1, 2], [0, 0, 0]), remove(0, 2)],
        [forward([0, 1], [0, 0]), remove(0, 1)],
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


NEW, CUT = [1, 2, 1, 2], [[1, 3, "x"]]
TREE = {"drafts": [1, 2, 1], "parents": [0, 1, 1]}
PAGED: dict[str, tuple[Ops, Ops]] = {
    "a tree with fewer drafts": (
        [accept(**TREE)],
        [accept(drafts=[1, 2], parents=[0, 1])],
    ),
    "a chain": ([accept(**TREE)], [accept(drafts=TREE["drafts"])]),
    "a draft that begins a branch": (
        [accept(**TREE)],
        [accept(**{**TREE, "parents": [0, 0, 1]})],
    ),
    "no drafts": ([accept(kept=1, **TREE)], [accept()]),
    "no first token, and the extras where they then are": (
        [opened("a", NEW, extras=[[0, 1, "x"], [1, 4, "y"]]), opened("b", NEW)],
        [opened("a", NEW[1:], extras=[[0, 3, "y"]]), opened("b", NEW[1:])],
    ),
    "fewer tokens than an extra covers": (
        [opened("a", NEW, extras=[[1, 4, "x"]])],
        [opened("a", NEW[:3], extras=CUT)],
    ),
    "a simple token of one request": (
        [opened("a", [1, 3]), opened("b", [3])],
        [opened("a", [1, 1]), opened("b", [3])],
    ),
    "a shorter extra": (
        [opened("a", NEW, extras=[[1, 4, "x"]])],
        [opened("a", NEW, extras=CUT)],
    ),
    "a simple key everywhere": (
        [opened(name, NEW, extras=[[1, 3, "5f3c"]]) for name in "ab"],
        [opened(name, NEW, extras=CUT) for name in "ab"],
    ),
    "no extras": (
        [opened(name, NEW, extras=CUT) for name in "ab"],
        [opened(name, NEW) for name in "ab"],
    ),
    "no adapter": (
        [opened(name, NEW, adapter="bc", namespace="a") for name in "ab"],
        [opened(name, NEW, namespace="a") for name in "ab"],
    ),
}


@pytest.mark.parametrize("name", [*LAYER, *UNIFIED, *PAGED])
def test_simpler_operations(name: str) -> None:
    config: dict[str, Any] = {}
    if name in UNIFIED:
        config = {"contract": "unified", "kind": "causal", "sequences": 8}
    if name in PAGED:
        config = {"contract": "paged", "kind": "paged-full", "extra_keys": True}
        config |= {"trees": True, "lookahead": 3}
    before, after = {**LAYER, **UNIFIED, **PAGED}[name]
    assert is_proposed(make(*before, **config), make(*after, **config))


@pytest.mark.parametrize(
    "simpler",
    [
        [{"kind": "causal", "capacity": 4}, {"kind": "swa", "window": 1}],
        [{"kind": "causal", "capacity": 4}, {"kind": "causal"}],
        [{"kind": "swa", "window": 3}],
        [{"kind": "causal", "capacity": 1}, {"kind": "swa", "window": 3}],
    ],
)
def test_simpler_caches_of_a_wrapper(simpler: list[dict[str, Any]]) -> None:
    caches = [{"kind": "causal", "capacity": 4}, {"kind": "swa", "window": 3}]
    assert is_proposed(make_wrapper(caches=caches), make_wrapper(caches=simpler))


@pytest.mark.parametrize(
    "simpler",
    [
        [{"kind": "batch-rotating", "window": 1}, {"kind": "batch-kv", "heads": 2}],
        [{"kind": "batch-kv"}, {"kind": "batch-kv", "heads": 2}],
        [{"kind": "batch-rotating", "window": 3}, {"kind": "batch-kv"}],
    ],
)
def test_simpler_caches_of_a_list(simpler: list[dict[str, Any]]) -> None:
    def make_list(caches: list[dict[str, Any]]) -> Program:
        opened = {"op": "open", "rows": 1}
        return make(opened, contract="batched", kind="batch-list", caches=caches)

    caches = [
        {"kind": "batch-rotating", "window": 3},
        {"kind": "batch-kv", "heads": 2},
    ]
    assert is_proposed(make_list(caches), make_list(simpler))


def test_a_list_keeps_as_many_items_as_it_must_have() -> None:
    assert [] not in get_simpler(["state"], CONTRACTS["prefix"].config["layers"])


@pytest.mark.parametrize("capacity", [8, 7])
def test_fewer_rows_by_the_number_of_sequences(capacity: int) -> None:
    """With the same capacity, or with a smaller one, which has less room."""

    def make_pass(rows: int, capacity: int) -> Program:
        ops = forward([*range(rows)], [0] * rows)
        config = {"sequences": 3, "capacity": capacity}
        return make(ops, contract="unified", kind="causal", **config)

    assert is_proposed(make_pass(7, 8), make_pass(4, capacity))
