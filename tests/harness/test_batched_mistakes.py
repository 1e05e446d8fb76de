"""Batches: a correct one agrees, and what is wrong with a batch or a list is said.

Mistakes that real batches made are planted in ours: `impl/faults/batches.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from batching import (
    Batch,
    ListBatch,
    SingleList,
    make,
    open_batch,
)

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import advance
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence, Program
from tests.harness.building import draw_some
from tests.harness.building import make as make_program

KINDS = list(make().contracts["batched"])


@cache
def get_programs(kind: str) -> list[Program]:
    return draw_some(250, "batched", kind, make().contracts["batched"][kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_correct_batch_agrees(kind: str) -> None:
    for number, program in enumerate(get_programs(kind)[:100]):
        assert run(program, make(), every=number % 4 == 0).divergence is None


# --- mistakes ---------------------------------------------------------------------------


MISTAKES: dict[str, tuple[str, str, type]] = {}


def mistake(kind: str, found: str) -> Callable[[type], type]:
    """Notes a class of batches with a mistake; found: a pattern of the signature."""

    def note(wrong: type) -> type:
        MISTAKES[wrong.__name__] = kind, found, wrong
        return wrong

    return note


@mistake("batch-kv", "update-(mask|contents)")
class PaddingIsSeen(Batch):
    """A mask without the padding on the left."""

    def make_mask(self, length: int) -> Any:
        mask = super().make_mask(length)
        return mask | mask.any(0, keepdims=True)


@mistake("batch-kv", "(open|stack)-malformed")
class OffsetsAreNoNumbers(Batch):
    """Offsets that were never written."""

    @property
    def offsets(self) -> Any:
        return super().offsets * np.nan


@mistake("batch-kv", "update-alias")
class OffsetsChangeLater(Batch):
    """mlx-lm #1699: the offsets are handed out, and changed in place."""

    shared: Any = None

    @property
    def offsets(self) -> Any:
        right = super().offsets
        if self.shared is None or len(self.shared) != len(right):
            self.shared = right
        self.shared[:] = right
        return self.shared

    def update(self, keys: Any, values: Any) -> Any:
        pair = super().update(keys, values)
        _ = self.offsets
        return pair


@mistake("batch-list", "(load|update|state|size|extract)-")
class ListIsLoadedWithWrongLengths(ListBatch):
    """mlx-lm pull request 886: the states of the parts are saved as one list, and cut
    apart at the wrong places."""

    def save(self) -> Any:
        return [row for saved in super().save() for row in saved]

    def load(self, saved: Any) -> None:
        rows = len(saved) // len(self.parts)
        super().load([saved[at : at + rows] for at in range(len(self.parts))])


@mistake("batch-list", "(trim|rollback|update|state|size|extract)-")
class ListIsTrimmedInPart(ListBatch):
    """mlx-lm's `CacheList.trim`: the first parts are trimmed before another refuses."""

    def trim(self, count: int) -> int:
        return int(self.each("trim", count)[-1])

    def rollback(self, counts: Sequence[int]) -> bool:
        return all(self.each("rollback", counts))


@mistake("batch-list", "filter-offset|(update|state|size)-")
class ListIsFilteredInPart(ListBatch):
    """Rows leave the first part only."""

    def filter(self, rows: Sequence[int]) -> None:
        self.parts[0].filter(rows)


@mistake("batch-list", "(stack|update|state|size|extract|trim)-")
class ExtractSharesAPart(ListBatch):
    """The last part of a single list is the row of the batch itself."""

    def extract(self, row: int) -> SingleList:
        single = super().extract(row)
        single.parts[-1] = self.parts[-1].rows[row]
        return single


def plant(wrong: type) -> Backend:
    def open_wrong(config: Mapping[str, Any]) -> Any:
        opened = open_batch(config)
        if isinstance(opened, ListBatch):
            return wrong(opened.parts)
        return wrong(opened.rows) if isinstance(opened, Batch) else opened

    return replace(make(), open=open_wrong)


def find(kind: str, wrong: type) -> tuple[Program, Divergence] | None:
    backend = plant(wrong)
    for program in get_programs(kind):
        if divergence := run(program, backend).divergence:
            return program, divergence
    return None


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    kind, pattern, wrong = MISTAKES[name]
    found = find(kind, wrong)
    assert found is not None
    program, divergence = found
    signature = divergence.get_signature(program).removeprefix(f"batched-{kind}-")
    assert re.match(pattern, signature), (signature, divergence.message)


def test_what_differs_is_said_of_a_row() -> None:
    ops = [
        {"op": "open", "rows": 2},
        {"op": "update", "length": 3, "left": [0, 2]},
        {"op": "update", "length": 1},
    ]
    program = make_program(*ops, contract="batched", kind="batch-kv")
    divergence = run(program, plant(PaddingIsSeen)).divergence
    assert divergence is not None
    assert divergence.message.startswith("row 1, query 0 sees")


def test_what_differs_is_said_of_a_part() -> None:
    caches = [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 2}]
    ops = [
        {"op": "open", "rows": 2},
        {"op": "update", "length": 2, "left": [0, 1]},
        {"op": "filter", "rows": [1]},
    ]
    fields = {"contract": "batched", "kind": "batch-list", "caches": caches}
    program = make_program(*ops, **fields)
    divergence = run(program, plant(ListIsFilteredInPart)).divergence
    assert divergence is not None
    assert divergence.message == "part 1: offsets is [2, 1], not [1]"

    class Unmasked(ListBatch):
        def __init__(self, parts: Sequence[Any]) -> None:
            super().__init__([parts[0], PaddingIsSeen(parts[1].rows)])

    program = make_program(*ops[:2], {"op": "update", "length": 1}, **fields)
    divergence = run(program, plant(Unmasked)).divergence
    assert divergence is not None
    assert divergence.message.startswith("part 1, row 1, query 0 sees")


def test_a_list_without_its_parts_is_to_blame() -> None:
    caches = [{"kind": "batch-kv"}, {"kind": "batch-kv"}]
    fields = {"contract": "batched", "kind": "batch-list", "caches": caches}
    program = make_program({"op": "open", "rows": 2}, **fields)
    for open_wrong, words in (
        (lambda config: open_batch(config).parts[0], "it has no parts"),
        (lambda config: ListBatch(open_batch(config).parts[:1]), "not a list of 2"),
    ):
        divergence = run(program, replace(make(), open=open_wrong)).divergence
        assert divergence is not None
        assert words in divergence.message


def test_a_batch_without_what_is_needed_is_to_blame() -> None:
    class Bare:
        def __init__(self, rows: Sequence[Any]) -> None:
            self.make_mask = Batch(rows).make_mask

    program = make_program({"op": "open", "rows": 2}, contract="batched", kind="batch-kv")
    bare = replace(make(), open=lambda config: Bare(open_batch(config).rows))
    divergence = run(program, bare).divergence
    assert divergence is not None
    assert divergence.message.endswith("not a batch: it has no pad_left, offsets")


def test_a_small_world_breaks_no_rule_of_usage() -> None:
    """A backend that does not declare that it refuses is explored, too."""
    rules = CONTRACTS["batched"]
    model = rules.open_model(
        rules.get_plain_config("batch-kv", Kind(frozenset()), ["float32"])
    )
    assert rules.complete_move({"op": "open", "rows": 0}, model) is None
    advance(rules.operations, {"op": "open", "rows": 2, "cache": "a"}, model)
    assert rules.complete_move({"op": "finalize", "cache": "a"}, model) is None
    assert rules.complete_move({"op": "filter", "rows": [1], "cache": "a"}, model)
    assert len(model.batches["a"].rows) == 2
