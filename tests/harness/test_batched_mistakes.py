"""Mistakes of batches and lists that `impl/faults/batches.py` does not have, and what is
said of a row, of a part, and of what is no batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import advance
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence, Program
from lockstep.impl.shared.batched import CacheBatch
from lockstep.impl.shared.batched_list import ListBatch
from lockstep.impl.torch.backend import cpu
from tests.harness.building import draw_some, make, update
from tests.harness.changing import change_caches

OPEN = {"op": "open", "rows": 2}


@cache
def get_programs() -> list[Program]:
    declared = cpu().contracts["batched"]["batch-list"]
    return draw_some(250, "batched", "batch-list", declared)


def save_rows(batch: ListBatch) -> Any:
    """mlx-lm pull request 886: the states of the parts are saved as one list, and cut
    apart at the wrong places."""
    saved = [part.save() for part in batch.parts]
    return saved[-1:] + saved[:-1]


def trim_in_turn(batch: ListBatch, count: int) -> int:
    """mlx-lm's `CacheList.trim`: the first parts are trimmed before another refuses."""
    return [part.trim(count) for part in batch.parts][-1]


def filter_first(batch: ListBatch, rows: Any) -> None:
    """Rows leave the first part only."""
    batch.parts[0].filter(rows)


MISTAKES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "save": (save_rows, "(load|update|state|size|extract)-"),
    "trim": (trim_in_turn, "(trim|rollback|update|state|size|extract)-"),
    "filter": (filter_first, "filter-offset|(update|state|size)-"),
}
"""Method of a list → what stands in its place, and a pattern of the signature."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, pattern = MISTAKES[name]
    monkeypatch.setattr(ListBatch, name, wrong)
    backend = cpu()
    for program in get_programs():
        if divergence := run(program, backend).divergence:
            break
    assert divergence is not None
    signature = divergence.get_signature(program)
    assert re.match(f"batched-batch-list-({pattern})", signature), signature


# --- what is said -----------------------------------------------------------------------


def find(*ops: Any, open_wrong: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    backend = cpu() if open_wrong is None else change_caches(cpu(), open_wrong)
    config = {"kind": "batch-kv", **more}
    divergence = run(make(*ops, contract="batched", **config), backend).divergence
    assert isinstance(divergence, Divergence)
    return divergence.message


PADDED = [OPEN, update(3, left=[0, 2])]
LIST: dict[str, Any] = {
    "kind": "batch-list",
    "caches": [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 4}],
}


def see_padding(batch: Any) -> Any:
    last = batch.parts[-1] if isinstance(batch, ListBatch) else batch
    last.make_mask = lambda length: "causal"
    return batch


def test_what_differs_is_said_of_a_row_and_of_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = find(*PADDED, open_wrong=see_padding)
    assert said.startswith("row 1, query 0 sees")
    said = find(*PADDED, open_wrong=see_padding, **LIST)
    assert said.startswith("part 1, row 1, query 0 sees")
    monkeypatch.setattr(ListBatch, "filter", filter_first)
    said = find(*PADDED, {"op": "filter", "rows": [1]}, **LIST)
    assert said == "part 1: offsets is [3, 1], not [1]"


class Bare:
    def __init__(self, batch: CacheBatch) -> None:
        self.make_mask = batch.make_mask


@pytest.mark.parametrize(
    ("open_wrong", "config", "words"),
    [
        (lambda batch: batch.parts[0], LIST, "it has no parts"),
        (lambda batch: ListBatch(batch.parts[:1]), LIST, "not a list of 2"),
        (Bare, {}, "not a batch: it has no pad_left, offsets"),
    ],
)
def test_what_lacks_something_is_to_blame(
    open_wrong: Any, config: Any, words: str
) -> None:
    assert words in find(OPEN, open_wrong=open_wrong, **config)


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
